#include "fulgur/data/cached_dataset.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>

#include <filesystem>

#include "data/data_support.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/data/data_loader.h"
#include "support/expect_error.h"
#include "support/temporary_folder.h"

namespace cached_dataset_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

/// A sample of WatchedDataset: 8 bytes of `x` and 32 of `noise`.
constexpr int64_t kSampleBytes = 40;

Batch all_of(const Dataset& dataset) {
  const int64_t count = dataset.size();
  Batch out(
      {Batch::Entry{"x", at::empty({count}, at::kLong)}, Batch::Entry{"noise", at::empty({count, 4}, at::kDouble)}});
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < count; ++i) indices.push_back(count - 1 - i);
  dataset.read(indices, 0, out, {.seed = 1});
  return out;
}

}  // namespace

TEST_CASE("a cache reads each sample once, in memory and on disk") {
  const TemporaryFolder folder;
  for (const bool on_disk : {false, true}) {
    const auto source = std::make_shared<WatchedDataset>(20);
    const CachedDataset cached(source, {.folder = on_disk ? folder.path() : std::filesystem::path()});
    CHECK(cached.capacity() == 20);
    const Batch direct = all_of(WatchedDataset(20));
    for (int i = 0; i < 3; ++i) {
      const Batch again = all_of(cached);
      CHECK(at::equal(again["x"], direct["x"]));
      CHECK(at::equal(again["noise"], direct["noise"]));
    }
    CHECK(source->reads == 20);
    // The file has no name, so that nothing is left.
    CHECK(std::filesystem::is_empty(folder.path()));
  }
}

TEST_CASE("a cache keeps what fits into its bytes") {
  const auto source = std::make_shared<WatchedDataset>(20);
  const CachedDataset cached(source, {.max_bytes = 7 * kSampleBytes + 39});
  CHECK(cached.capacity() == 7);
  for (int i = 0; i < 3; ++i) CHECK(at::equal(all_of(cached)["x"], all_of(WatchedDataset(20))["x"]));
  CHECK(source->reads == 20 + 2 * 13);
  const auto uncached = std::make_shared<WatchedDataset>(20);
  CHECK(at::equal(all_of(CachedDataset(uncached, {.max_bytes = 0}))["x"], all_of(WatchedDataset(20))["x"]));
}

TEST_CASE("workers of a loader share a cache, and a collate function gets its rows") {
  const auto source = std::make_shared<WatchedDataset>(500);
  const auto cached = std::make_shared<CachedDataset>(source);
  DataLoader loader(cached, {.batch_size = 7, .shuffle = true, .num_workers = int64_t{3}});
  loader.configure(1, 0, 1);
  for (int64_t epoch = 0; epoch < 4; ++epoch) {
    auto seen = epoch_of(loader, epoch);
    std::ranges::sort(seen);
    REQUIRE(seen.size() == 500);
    for (size_t i = 0; i < seen.size(); ++i) CHECK(seen[i] == static_cast<int64_t>(i));
  }
  CHECK(source->reads == 500);
  DataLoaderOptions options{.batch_size = 10};
  options.collate = [](Batch samples) {
    CHECK(samples.list("noise").size() == 10);
    return Batch{{"x", at::empty({10}, at::kLong).fill_(samples.list("noise")[3].numel())}};
  };
  DataLoader collated(cached, options);
  collated.configure(1, 0, 1);
  CHECK(epoch_of(collated, 0).size() == 500);
  CHECK(source->reads == 500);
}

TEST_CASE("caches that cannot be made are named") {
  const auto source = std::make_shared<WatchedDataset>(20);
  CHECK_THROWS_AS(CachedDataset(nullptr), ConfigError);
  CHECK_THROWS_AS(CachedDataset(source, {.max_bytes = -1}), ConfigError);
  const TemporaryFolder folder;
  CHECK_THAT(message_of<DataError>([&] { CachedDataset(source, {.folder = folder / "absent"}); }),
             ContainsSubstring("folder") && ContainsSubstring("absent") && ContainsSubstring("No such file"));
}

}  // namespace cached_dataset_test
