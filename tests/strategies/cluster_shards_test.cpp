// 128 nodes with 8 processes each, without starting any: every rank is given its place, and no sample is lost or
// duplicated.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <memory>

#include "fulgur/data/samplers.h"
#include "made_up_clusters.h"

namespace cluster_shards_test {

namespace {

using namespace fulgur;

constexpr int64_t kNodes = 128, kPerNode = 8, kWorld = kNodes * kPerNode;

std::vector<ProcessPlace> all_places(Environment (*environment_of)(int64_t, int64_t, int64_t)) {
  std::vector<ProcessPlace> places;
  for (int64_t rank = 0; rank < kWorld; ++rank)
    places.push_back(detect_cluster_environment(environment_of(rank, kNodes, kPerNode)).value());
  return places;
}

void check_places(const std::vector<ProcessPlace>& places, const std::string& name, const std::string& address,
                  int64_t port) {
  for (int64_t rank = 0; rank < kWorld; ++rank) {
    const ProcessPlace& place = places[static_cast<size_t>(rank)];
    const bool right = place.environment == name && place.rank == rank && place.world_size == kWorld &&
                       place.local_rank == rank % kPerNode && place.local_world_size == kPerNode &&
                       place.node_rank == rank / kPerNode && place.num_nodes == kNodes &&
                       place.main_address == address && place.main_port == port;
    INFO("rank " << rank);
    CHECK(right);
  }
}

/// How often each sample comes, over all ranks; and the smallest and largest share.
struct Shares {
  std::vector<int> times;
  size_t smallest = SIZE_MAX, largest = 0;
};

Shares shares_of(const Sampler& sampler, const std::vector<ProcessPlace>& places, int64_t samples) {
  Shares shares{std::vector<int>(static_cast<size_t>(samples), 0)};
  for (const ProcessPlace& place : places) {
    const std::vector<int64_t> order =
        sampler.order({.seed = 42, .epoch = 3, .rank = place.rank, .world_size = place.world_size});
    REQUIRE(static_cast<int64_t>(order.size()) == sampler.size(place.rank, place.world_size));
    shares.smallest = std::min(shares.smallest, order.size());
    shares.largest = std::max(shares.largest, order.size());
    for (const int64_t index : order) ++shares.times.at(static_cast<size_t>(index));
  }
  return shares;
}

int64_t samples_that_come(const Shares& shares, int times) {
  return std::count(shares.times.begin(), shares.times.end(), times);
}

void check_shards(const std::vector<ProcessPlace>& places) {
  // Divisible, one more, one less, fewer samples than ranks, fewer than nodes.
  for (const int64_t samples : {10 * kWorld, 10 * kWorld + 1, 10 * kWorld - 1, int64_t{1000}, int64_t{5}}) {
    INFO(samples << " samples");
    const bool even = samples % kWorld == 0;
    for (const bool shuffle : {false, true}) {
      INFO((shuffle ? "in random order" : "in order"));
      std::shared_ptr<Sampler> sampler;
      if (shuffle)
        sampler = std::make_shared<RandomSampler>(samples);
      else
        sampler = std::make_shared<SequentialSampler>(samples);
      const Shares exact = shares_of(*sampler, places, samples);
      CHECK(samples_that_come(exact, 1) == samples);
      CHECK(exact.largest - exact.smallest == (even ? 0 : 1));

      const Shares dropped = shares_of(DistributedSampler(sampler, UnevenShares::drop), places, samples);
      CHECK(dropped.smallest == dropped.largest);
      CHECK(samples_that_come(dropped, 1) == samples / kWorld * kWorld);
      CHECK(samples_that_come(dropped, 0) == samples % kWorld);

      const Shares padded = shares_of(DistributedSampler(sampler, UnevenShares::pad), places, samples);
      CHECK(padded.smallest == padded.largest);
      CHECK(samples_that_come(padded, 0) == 0);
      const int64_t fill = even ? 0 : kWorld - samples % kWorld;
      if (fill < samples) {
        CHECK(samples_that_come(padded, 1) == samples - fill);
        CHECK(samples_that_come(padded, 2) == fill);
      }
    }
  }
}

}  // namespace

TEST_CASE("1,024 ranks of Slurm know their places and see each sample once") {
  const std::vector<ProcessPlace> places = all_places(test::slurm_environment);
  check_places(places, "slurm", "gpu007", 15000 + 4321);
  check_shards(places);
}

TEST_CASE("1,024 ranks of torchrun know their places and see each sample once") {
  const std::vector<ProcessPlace> places = all_places(test::torchrun_environment);
  check_places(places, "torchrun", "node001", 29400);
  check_shards(places);
}

}  // namespace cluster_shards_test
