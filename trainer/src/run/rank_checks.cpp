#include "run/rank_checks.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <string>
#include <utility>
#include <vector>

#include "fulgur/core/contracts/same_ranks.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {

void RankChecks::check_exchanges() {
  const at::Device device = run_.device();
  if (run_.world_size() == 1 || device.is_cpu()) return;
  c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
  run_.collectives().check();
}

void RankChecks::check_same_ranks() {
  settle_same_steps(/*with_all=*/true);
  const int64_t step = run_.counters.global_step;
  if (run_.world_size() == 1 || std::exchange(same_ranks_at_, step) == step) return;
  auto* const same = dynamic_cast<SameRanks*>(run_.strategy.get());
  if (!same) return;
  const char* const before = std::exchange(run_.position.doing, "the comparison of the ranks");
  same->check_same_ranks(*run_.model, run_.optimizer_handles(), step);
  run_.position.doing = before;
}

void RankChecks::check_order() {
  if (run_.world_size() == 1) return;
  if (auto* const same = dynamic_cast<SameRanks*>(run_.strategy.get())) same->check_order();
}

void RankChecks::check_same_steps() {
  if (run_.world_size() == 1) return;
  settle_same_steps(/*with_all=*/true);
  same_steps_ = run_.collectives().start_max({run_.counters.global_step, -run_.counters.global_step});
}

void RankChecks::settle_same_steps(bool with_all) {
  if (!same_steps_) return;
  const std::vector<int64_t> most_and_least = std::exchange(same_steps_, nullptr)->take();
  Collectives& collectives = run_.collectives();
  collectives.check();
  if (most_and_least[0] == -most_and_least[1]) return;
  const std::string place = cat("[trainer.optimizer_step] all ranks must make the same steps; after epoch ",
                                run_.counters.epoch, ", batch ", run_.position.batch_idx);
  constexpr const char* kWhatToDo =
      ". An optimizer step depends on a condition that differs between ranks: do not let it depend on the rank, and "
      "all_reduce the values that it depends on.";
  if (!with_all)
    throw DistributedError(cat(place, " they have made ", -most_and_least[1], " to ", most_and_least[0], kWhatToDo));
  std::string own = cat(run_.counters.global_step);
  const auto& handles = run_.handles;
  for (size_t i = 0; handles.size() > 1 && i < handles.size(); ++i)
    own += cat(i == 0 ? " (" : ", ", handles[i]->steps(), " of optimizer ", i, i + 1 == handles.size() ? ")" : "");
  std::vector<std::string> ranks;
  for (const std::string& steps : collectives.gather_text(own))
    ranks.push_back(cat(steps, " on rank ", static_cast<int64_t>(ranks.size())));
  throw DistributedError(cat(place, " the number of steps is ", join(ranks), kWhatToDo));
}

}  // namespace fulgur::detail
