#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <numeric>
#include <set>

#include "fulgur/core/errors.h"
#include "fulgur/data/samplers.h"
#include "permutation.h"

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
