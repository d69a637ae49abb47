#include <algorithm>
#include <numeric>
#include <set>

#include "data_support.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/data/data_loader.h"
#include "fulgur/data/samplers.h"
#include "sampling/permutation.h"
#include "support/expect_error.h"

namespace samplers_test {

using namespace fulgur;

TEST_CASE("a sequential sampler gives the dataset's order") {
  const SequentialSampler sampler(5);
  CHECK(sampler.order({}) == std::vector<int64_t>{0, 1, 2, 3, 4});
  CHECK(sampler.size(0, 1) == 5);
  CHECK_FALSE(sampler.shuffles());
}

TEST_CASE("the permutation is the same on every platform") {
  // Written by the first version; another order would break the resume of every checkpoint.
  CHECK(random_permutation(10, 42, 0) == std::vector<int64_t>{7, 9, 1, 3, 0, 5, 4, 8, 6, 2});
  CHECK(random_permutation(10, 42, 1) == std::vector<int64_t>{3, 4, 1, 0, 2, 6, 5, 7, 8, 9});
}

TEST_CASE("a permutation has each index once and every index anywhere") {
  std::vector<int64_t> order = random_permutation(1000, 7, 3);
  std::sort(order.begin(), order.end());
  std::vector<int64_t> all(1000);
  std::iota(all.begin(), all.end(), int64_t{0});
  CHECK(order == all);

  // 0 comes to each of 5 places about as often: 2,000 draws, expected 400 each, standard deviation 18.
  std::vector<int> places(5, 0);
  for (uint64_t epoch = 0; epoch < 2000; ++epoch) {
    const auto drawn = random_permutation(5, 1, epoch);
    ++places[static_cast<size_t>(std::find(drawn.begin(), drawn.end(), 0) - drawn.begin())];
  }
  for (const int count : places) CHECK(std::abs(count - 400) < 90);
}

TEST_CASE("a random sampler is a pure function of seed and epoch") {
  const RandomSampler sampler(100), same(100);
  const SamplerContext first{.seed = 3, .epoch = 0}, second{.seed = 3, .epoch = 1}, other{.seed = 4, .epoch = 0};
  CHECK(sampler.order(first) == same.order(first));
  CHECK(sampler.order(first) != sampler.order(second));
  CHECK(sampler.order(first) != sampler.order(other));
  CHECK(sampler.shuffles());
}

TEST_CASE("ranks share an epoch without repeats, sizes differ by one at most") {
  for (const int64_t samples : {0, 1, 3, 10, 11}) {
    for (const int64_t world : {1, 2, 3, 4}) {
      const RandomSampler random(samples);
      const SequentialSampler sequential(samples);
      for (const Sampler* sampler : {static_cast<const Sampler*>(&random), static_cast<const Sampler*>(&sequential)}) {
        std::multiset<int64_t> seen;
        int64_t least = samples, most = 0;
        for (int64_t rank = 0; rank < world; ++rank) {
          const auto order = sampler->order({.seed = 9, .epoch = 2, .rank = rank, .world_size = world});
          CHECK(static_cast<int64_t>(order.size()) == sampler->size(rank, world));
          least = std::min(least, sampler->size(rank, world));
          most = std::max(most, sampler->size(rank, world));
          seen.insert(order.begin(), order.end());
        }
        CHECK(static_cast<int64_t>(seen.size()) == samples);
        CHECK(std::set<int64_t>(seen.begin(), seen.end()).size() == seen.size());
        CHECK(most - least <= 1);
      }
    }
  }
}

TEST_CASE("the shares of ranks are strides of one order") {
  const RandomSampler sampler(7);
  const auto all = sampler.order({.seed = 5, .epoch = 1});
  const auto share = sampler.order({.seed = 5, .epoch = 1, .rank = 1, .world_size = 3});
  CHECK(share == std::vector<int64_t>{all[1], all[4]});
}

TEST_CASE("samplers refuse impossible sizes and ranks") {
  CHECK_THROWS_AS(RandomSampler(-1), ConfigError);
  CHECK_THROWS_AS(SequentialSampler(-1), ConfigError);
  CHECK_THROWS_AS(RandomSampler(4).order({.rank = 2, .world_size = 2}), ConfigError);
  CHECK_THROWS_AS(SequentialSampler(4).size(0, 0), ConfigError);
}

TEST_CASE("a subset sampler returns its indices, shuffled on request") {
  const std::vector<int64_t> indices = {9, 3, 4, 7, 1, 0};
  CHECK(SubsetSampler(indices).order({}) == indices);
  CHECK(SubsetSampler(indices).order({.rank = 1, .world_size = 4}) == std::vector<int64_t>{3, 0});
  const SubsetSampler shuffled(indices, true);
  CHECK(shuffled.shuffles());
  auto order = shuffled.order({.seed = 1, .epoch = 2});
  CHECK(order != indices);
  CHECK(order == shuffled.order({.seed = 1, .epoch = 2}));
  CHECK(order != shuffled.order({.seed = 1, .epoch = 3}));
  CHECK(std::multiset<int64_t>(order.begin(), order.end()) == std::multiset<int64_t>(indices.begin(), indices.end()));
  CHECK_THROWS_AS(SubsetSampler({1, -1}), ConfigError);
}

TEST_CASE("a weighted sampler draws by weight, and never what has weight 0") {
  const std::vector<double> weights = {1, 0, 3, 0, 4, 0};
  const WeightedSampler with(weights, 8000);
  const auto drawn = with.order({.seed = 5, .epoch = 1});
  std::vector<int64_t> counts(6, 0);
  for (const int64_t index : drawn) ++counts.at(static_cast<size_t>(index));
  CHECK(counts[1] + counts[3] + counts[5] == 0);
  // Expected 1000, 3000, 4000; standard deviations 30, 43, 45.
  CHECK(std::abs(counts[0] - 1000) < 150);
  CHECK(std::abs(counts[2] - 3000) < 220);
  CHECK(drawn == with.order({.seed = 5, .epoch = 1}));
  CHECK(drawn != with.order({.seed = 5, .epoch = 2}));
  const auto share = with.order({.seed = 5, .epoch = 1, .rank = 1, .world_size = 3});
  CHECK(static_cast<int64_t>(share.size()) == with.size(1, 3));
  CHECK(share[1] == drawn[4]);

  const WeightedSampler without(weights, 3, false);
  int64_t heavy_first = 0;
  for (int64_t epoch = 0; epoch < 2000; ++epoch) {
    const auto order = without.order({.seed = 5, .epoch = epoch});
    CHECK(std::set<int64_t>(order.begin(), order.end()) == std::set<int64_t>{0, 2, 4});
    heavy_first += order[0] == 4 ? 1 : 0;
  }
  CHECK(std::abs(heavy_first - 1000) < 120);  // half of the weight; standard deviation 22

  CHECK_THROWS_AS(WeightedSampler({1, -1}, 2), ConfigError);
  CHECK_THROWS_AS(WeightedSampler({0, 0}, 2), ConfigError);
  CHECK_THROWS_AS(WeightedSampler({1, std::nan("")}, 2), ConfigError);
  CHECK_THROWS_AS(WeightedSampler(weights, 4, false), ConfigError);
  CHECK_THROWS_AS(WeightedSampler(weights, 0), ConfigError);
}

TEST_CASE("a distributed sampler gives every rank the same number of samples") {
  for (const int64_t samples : {1, 7, 12}) {
    for (const int64_t world : {1, 3, 4}) {
      const auto source = std::make_shared<RandomSampler>(samples);
      const DistributedSampler padded(source), dropped(source, UnevenShares::drop);
      std::multiset<int64_t> seen_padded, seen_dropped;
      for (int64_t rank = 0; rank < world; ++rank) {
        const SamplerContext context{.seed = 2, .epoch = 5, .rank = rank, .world_size = world};
        const auto p = padded.order(context), d = dropped.order(context);
        CHECK(static_cast<int64_t>(p.size()) == (samples + world - 1) / world);
        CHECK(static_cast<int64_t>(d.size()) == samples / world);
        CHECK(padded.size(rank, world) == static_cast<int64_t>(p.size()));
        seen_padded.insert(p.begin(), p.end());
        seen_dropped.insert(d.begin(), d.end());
      }
      CHECK(std::set<int64_t>(seen_padded.begin(), seen_padded.end()).size() == static_cast<size_t>(samples));
      CHECK(std::set<int64_t>(seen_dropped.begin(), seen_dropped.end()).size() == seen_dropped.size());
    }
  }
  CHECK_THROWS_AS(DistributedSampler(nullptr), ConfigError);
}

TEST_CASE("a distributed sampler that is to refuse uneven shares does so when it is asked for one") {
  const DistributedSampler strict(std::make_shared<RandomSampler>(7), UnevenShares::error);
  CHECK(strict.size(0, 7) == 1);
  CHECK_THROWS_AS(strict.size(1, 3), DataError);
  CHECK_THROWS_AS(strict.order({.seed = 2, .epoch = 0, .rank = 1, .world_size = 3}), DataError);
}

TEST_CASE("a loader takes whole batches from a batch sampler, and resumes in them") {
  struct Uneven : BatchSampler {
    int64_t size(int64_t, int64_t) const override { return 4; }
    int64_t batch_size() const override { return 3; }
    int64_t samples(int64_t, int64_t) const override { return 8; }
    std::vector<std::vector<int64_t>> batches(const SamplerContext&) const override {
      return {{5}, {1, 2, 3}, {0, 9, 8}, {7}};
    }
  };
  const std::vector<int64_t> expected = {5, 1, 2, 3, 0, 9, 8, 7};
  for (const int64_t workers : {0, 2}) {
    const auto make = [&](std::shared_ptr<const BatchSampler> sampler) {
      return DataLoader(test::numbers(10), {.batch_sampler = std::move(sampler), .num_workers = workers});
    };
    DataLoader loader = make(std::make_shared<Uneven>());
    CHECK(loader.size() == 4);
    CHECK(loader.samples() == 8);
    CHECK(loader.batch_size() == 3);
    CHECK(test::epoch_of(loader, 0) == expected);
    loader.start_epoch(1);
    Batch batch;
    std::vector<int64_t> sizes;
    for (int i = 0; i < 2; ++i) {
      REQUIRE(loader.next(batch));
      sizes.push_back(batch.size());
    }
    CHECK(sizes == std::vector<int64_t>{1, 3});
    DataLoader after = make(std::make_shared<Uneven>());
    after.load_state(loader.state());
    CHECK(test::epoch_of(after, 1) == std::vector<int64_t>{0, 9, 8, 7});
    DataLoader other = make(std::make_shared<FixedBatchSampler>(std::make_shared<SequentialSampler>(10), 3));
    other.load_state(loader.state());
    CHECK_THROWS_AS(other.start_epoch(1), DataError);
  }
  DataLoader fixed(test::numbers(10), {.batch_sampler = std::make_shared<FixedBatchSampler>(
                                           std::make_shared<RandomSampler>(10), 3, true)});
  CHECK(fixed.size() == 3);
  CHECK(fixed.shuffles());
  CHECK_FALSE(fixed.keep_order());
  DataLoader same(test::numbers(10), {.batch_size = 3, .shuffle = true, .drop_last = true});
  CHECK(test::epoch_of(fixed, 2) == test::epoch_of(same, 2));
  CHECK_THROWS_AS(DataLoader(test::numbers(4), {.batch_size = 2, .batch_sampler = std::make_shared<Uneven>()}),
                  ConfigError);
}

TEST_CASE("batches of a batch sampler are shared among ranks as uneven_shares says") {
  const auto of_rank = [](int64_t rank, UnevenShares rest) {
    DataLoader loader(test::numbers(33), {.batch_sampler = std::make_shared<FixedBatchSampler>(
                                              std::make_shared<SequentialSampler>(33), 4)});
    loader.share_evenly(rest);
    loader.configure(1, rank, 2);
    return test::epoch_of(loader, 0);
  };
  CHECK(of_rank(0, UnevenShares::pad).size() == 17);
  CHECK(of_rank(1, UnevenShares::pad).size() == 17);
  CHECK(of_rank(0, UnevenShares::drop).size() == 16);
  CHECK(of_rank(1, UnevenShares::drop).size() == 16);
  std::set<int64_t> seen;
  for (const int64_t rank : {0, 1})
    for (const int64_t sample : of_rank(rank, UnevenShares::pad)) seen.insert(sample);
  CHECK(seen.size() == 33);
  CHECK_THROWS_AS(of_rank(0, UnevenShares::error), DataError);
  DataLoader even(test::numbers(32),
                  {.batch_sampler = std::make_shared<FixedBatchSampler>(std::make_shared<SequentialSampler>(32), 4)});
  even.share_evenly(UnevenShares::error);
  CHECK_NOTHROW(even.configure(1, 1, 2));
}

TEST_CASE("a batch sampler that leaves the ranks out of account, or shares unevenly, is found") {
  struct Selfish : BatchSampler {
    int64_t size(int64_t, int64_t) const override { return 3; }
    int64_t batch_size() const override { return 4; }
    int64_t samples(int64_t, int64_t) const override { return 12; }
    std::vector<std::vector<int64_t>> batches(const SamplerContext&) const override {
      return {{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}};
    }
  };
  // Three batches for two ranks.
  struct Dealt : Selfish {
    int64_t size(int64_t rank, int64_t world) const override { return (3 - rank + world - 1) / world; }
    int64_t samples(int64_t rank, int64_t world) const override { return 4 * size(rank, world); }
    std::vector<std::vector<int64_t>> batches(const SamplerContext& c) const override {
      std::vector<std::vector<int64_t>> own;
      for (int64_t i = c.rank; i < 3; i += c.world_size) own.push_back({4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3});
      return own;
    }
  };
  DataLoader selfish(test::numbers(12), {.batch_sampler = std::make_shared<Selfish>()});
  CHECK_THROWS_AS(selfish.configure(1, 0, 3), DataError);
  DataLoader dealt(test::numbers(12), {.batch_sampler = std::make_shared<Dealt>()});
  CHECK_NOTHROW(dealt.configure(1, 0, 2));  // an evaluation
  dealt.share_evenly(UnevenShares::error);
  CHECK_THROWS_AS(dealt.configure(1, 0, 2), DataError);
  std::string told;
  log::reset_warnings();
  log::set_sink(
      [](log::Level, const std::string& line, void* user) { *static_cast<std::string*>(user) += line + "\n"; }, &told);
  dealt.share_evenly(UnevenShares::pad);
  dealt.configure(1, 0, 2);
  log::set_sink({}, nullptr);
  CHECK(told.find("gives a rank 1 to 2 batches") != std::string::npos);
}

}  // namespace samplers_test
