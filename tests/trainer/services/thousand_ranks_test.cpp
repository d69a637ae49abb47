// What ranks agree on, save and load, and what that costs each of them, at up to 1,024. Ranks are threads, or one
// object after another: no process is started.
#include <ATen/ops/arange.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <set>

#include "checkpointing/rank_states.h"
#include "fulgur/callbacks/model_checkpoint.h"
#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/trainer/checkpoint_keys.h"
#include "services/rank_consensus.h"
#include "support/counting_collectives.h"
#include "support/thread_collectives.h"
#include "trainer/boring.h"

namespace thousand_ranks_test {

using namespace fulgur;
using namespace fulgur::test;

namespace {

constexpr int64_t kMany = 1024, kFewer = 768;

fulgur::detail::RankRole role_of(int64_t rank) { return {.share = rank, .counts = true, .logs = rank == 0}; }

std::vector<fulgur::detail::RankRole> roles_of(int64_t ranks) {
  std::vector<fulgur::detail::RankRole> roles;
  for (int64_t rank = 0; rank < ranks; ++rank) roles.push_back(role_of(rank));
  return roles;
}

template <class Count>
bool all_equal(const std::vector<Count>& counts) {
  return std::ranges::all_of(counts, [&](const Count& one) { return one == counts.front(); });
}

/// What a rank has asked for, and the step at which it saw the signal that ends the run.
struct Agreement {
  int64_t exchanges = 0, bytes = 0, step = 0;
  bool operator==(const Agreement&) const = default;
};

/// The state that a checkpoint of a run has, with the number of a rank in it.
StateTree state_of_run() {
  const TemporaryFolder folder;
  ModelCheckpoint::Options saving;
  saving.filename = "saved";
  TrainerComponents components;
  components.add(std::make_shared<ModelCheckpoint>(saving));
  const FitReport report =
      Trainer(quiet(folder), components).fit(std::make_shared<SelfPlanned>(), regression_data(8, 0));
  return read_checkpoint(report.run_dir / "checkpoints/saved.ckpt").state;
}

std::unique_ptr<DataLoader> loader_of(int64_t samples, int64_t batch_size, int64_t rank, int64_t ranks) {
  auto loader = std::make_unique<DataLoader>(std::make_shared<TensorDataset>(Batch{{"number", at::arange(samples)}}),
                                             DataLoaderOptions{.batch_size = batch_size, .shuffle = true});
  loader->share_evenly(UnevenShares::pad);
  loader->configure(/*seed=*/7, rank, ranks);
  return loader;
}

}  // namespace

TEST_CASE("agreement on a signal costs a rank the same, and comes at one step, with 8 and with 1,024 ranks") {
  std::vector<Agreement> all;
  for (const int64_t ranks : {8, 64, 512, 1024}) {
    std::vector<Agreement> of_rank(static_cast<size_t>(ranks));
    run_ranks(ranks, [&](Collectives& inner) {
      CountingCollectives collectives(inner);
      const int64_t rank = inner.rank();
      bool signalled = false;
      fulgur::detail::RankConsensus consensus({.stop_reason = [] { return std::optional<std::string>(); },
                                               .signal = [&] { return signalled ? std::optional(15) : std::nullopt; },
                                               .take_save_request = [] { return false; },
                                               .save_is_done = [] { return false; }},
                                              [](const std::string&) {});
      consensus.start(collectives, 4);
      Agreement own;
      for (int64_t step = 1; step <= 24; ++step) {
        signalled = signalled || (rank == ranks - 1 && step == 6);
        consensus.step();
        if (own.step == 0 && consensus.signal()) own.step = step;
      }
      own.exchanges = collectives.exchanges;
      own.bytes = collectives.bytes;
      of_rank[static_cast<size_t>(rank)] = own;
    });
    REQUIRE(all_equal(of_rank));
    all.push_back(of_rank.front());
  }
  CHECK(all_equal(all));
  CHECK(all.front().step > 6);
  CHECK(all.front().exchanges <= 24 / 4 + 1);
  CHECK(all.front().bytes <= all.front().exchanges * 2 * 6 * static_cast<int64_t>(sizeof(int64_t)));
}

TEST_CASE("a save asks one exchange of each of 1,024 ranks, and sends the same from each; all find their state again") {
  const StateTree of_run = state_of_run();
  std::vector<std::pair<int64_t, int64_t>> costs;
  StateTree saved;
  for (const int64_t ranks : {int64_t{8}, int64_t{64}, kMany}) {
    std::vector<std::pair<int64_t, int64_t>> of_rank(static_cast<size_t>(ranks));
    std::vector<StateTree> states(static_cast<size_t>(ranks));
    run_ranks(ranks, [&](Collectives& inner) {
      CountingCollectives collectives(inner);
      StateTree state = of_run;
      state["strategy"] = StateTree::map({{"number", inner.rank()}});
      state["loop"]["role"] = fulgur::detail::state_of_role(role_of(inner.rank()));
      fulgur::detail::gather_rank_states(collectives, state);
      const auto rank = static_cast<size_t>(inner.rank());
      of_rank[rank] = {collectives.exchanges, collectives.sent_to_gathers};
      if (rank == 0) states[0] = std::move(state);
    });
    REQUIRE(all_equal(of_rank));
    costs.push_back(of_rank.front());
    saved = std::move(states.front());
  }
  CHECK(all_equal(costs));
  CHECK(costs.front().first == 1);
  CHECK(costs.front().second < 16 * 1024);
  REQUIRE(saved.at(fulgur::detail::checkpoint_keys::kRanks).as_list().size() == kMany - 1);
  for (const int64_t rank : {int64_t{0}, int64_t{1}, kMany / 2, kMany - 1}) {
    const StateTree own = fulgur::detail::state_of_rank(saved, kMany, rank, roles_of(kMany));
    CHECK(own.at("strategy").at("number").as_int() == rank);
  }
  // With fewer ranks, each has what a run needs, and only rank 0 the random numbers of one that has saved.
  for (const int64_t rank : {int64_t{0}, int64_t{1}, kFewer - 1}) {
    const StateTree own = fulgur::detail::state_of_rank(saved, kMany, rank, roles_of(kFewer));
    CHECK(own.at(fulgur::detail::checkpoint_keys::kProgress).at("global_step").as_int() ==
          of_run.at(fulgur::detail::checkpoint_keys::kProgress).at("global_step").as_int());
    CHECK(own.at(fulgur::detail::checkpoint_keys::kRng).is_null() == (rank > 0));
  }
}

TEST_CASE("an epoch that 1,024 ranks have begun is continued by 768: each sample is seen once") {
  constexpr int64_t kBatch = 2, kSteps = 5, kSamples = kBatch * kMany * 18;  // 18 and 24 steps are an epoch
  std::vector<int64_t> times(static_cast<size_t>(kSamples), 0);
  const auto count = [&](DataLoader& loader, int64_t batches) {
    Batch batch;
    int64_t read = 0;
    while ((batches < 0 || read < batches) && loader.next(batch)) {
      ++read;
      const Tensor index = batch["number"];
      for (int64_t i = 0; i < index.numel(); ++i) ++times[static_cast<size_t>(index.const_data_ptr<int64_t>()[i])];
    }
    return read;
  };
  const auto begin = std::chrono::steady_clock::now();
  std::vector<StateTree> states;
  for (int64_t rank = 0; rank < kMany; ++rank) {
    const auto loader = loader_of(kSamples, kBatch, rank, kMany);
    loader->start_epoch(0);
    REQUIRE(count(*loader, kSteps) == kSteps);
    states.push_back(loader->state());
  }
  std::set<int64_t> lengths;
  for (int64_t rank = 0; rank < kFewer; ++rank) {
    const auto loader = loader_of(kSamples, kBatch, rank, kFewer);
    loader->load_state(loader->reshard_state(states.front(), kMany));
    loader->start_epoch(0);
    lengths.insert(count(*loader, -1));
  }
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(120));
  // 13 steps of 2,048 samples are left: 17 whole ones of 1,536, and a third of one, which is filled up.
  CHECK(lengths == std::set<int64_t>{18});
  const auto seen = [&](int64_t n) { return std::ranges::count(times, n); };
  CHECK(seen(0) == 0);
  CHECK(seen(1) + seen(2) == kSamples);
  // Shares have the same length: at most one sample of a share is a repetition.
  CHECK(seen(2) < kFewer);
}

}  // namespace thousand_ranks_test
