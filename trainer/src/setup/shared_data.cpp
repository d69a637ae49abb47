#include "setup/shared_data.h"

#include <string>

#include "fulgur/core/state/state_bytes.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {

SharedData SharedData::of(Loader& loader, uint64_t seed) {
  loader.configure(seed, /*rank=*/0, /*world_size=*/1);
  if (!loader.samples() || !loader.size()) return {};
  SharedData data{.samples = *loader.samples(), .batches = *loader.size(), .batch_size = loader.batch_size()};
  data.shuffles = loader.shuffles() ? 1 : 0;
  if (loader.shuffles()) data.seed = static_cast<int64_t>(seed);
  return data;
}

void throw_other_data(Collectives& collectives, RunningStage stage, const std::vector<SharedData>& loaders) {
  StateTree::List own;
  for (const SharedData& data : loaders)
    for (const int64_t number : data.numbers()) own.emplace_back(number);
  std::vector<StateTree> ranks;
  for (const std::string& text : collectives.gather_text(pack_state(own))) ranks.push_back(unpack_state(text));
  constexpr std::array<std::string_view, 5> kNames{"samples", "batches of one process", "batch_size", "shuffle",
                                                   "seed of the order"};
  const auto text_of = [](std::string_view name, int64_t number) {
    if (number == SharedData::kUnknown) return std::string("unknown");
    return name == "shuffle" ? std::string(number != 0 ? "true" : "false") : std::to_string(number);
  };
  std::vector<std::string> differences;
  for (size_t i = 0; i < own.size(); ++i) {
    const std::string_view name = kNames[i % kNames.size()];
    for (size_t rank = 1; rank < ranks.size(); ++rank) {
      const int64_t first = ranks[0].as_list()[i].as_int(), other = ranks[rank].as_list()[i].as_int();
      if (first == other) continue;
      const std::string which =
          loaders.size() > 1 ? cat(" of loader ", static_cast<int64_t>(i / kNames.size())) : std::string();
      differences.push_back(cat(name, which, ": ", text_of(name, first), " on rank 0, ", text_of(name, other),
                                " on rank ", static_cast<int64_t>(rank)));
    }
  }
  if (differences.size() > 10) differences.resize(10), differences.emplace_back("…");
  throw DataError(cat("[trainer.data] ranks share one data set, so all must have the same ", name_of(stage),
                      " loaders. They differ in ", join(differences, "; "),
                      ". Give all ranks the same files and options, or set trainer.use_distributed_sampler: false if "
                      "each rank has its own data."));
}

}  // namespace fulgur::detail
