// Memory that a loader writes batches into in turn.
#include "fulgur/data/input_sets.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "fulgur/data/data_loader.h"
#include "fulgur/data/device_prefetcher.h"
#include "fulgur/data/tensor_dataset.h"
#include "support/gpu.h"

namespace input_sets_test {

using namespace fulgur;
using namespace fulgur::test;

namespace {

const at::Device kGpu(at::kCUDA, 0);

Batch batch_of(double value, int64_t samples = 4) {
  return Batch{{"x", at::full({samples, 3}, value)}, {"y", at::full({samples}, value)}};
}

// 0, 1, 2, … in batches of four; the last has two.
std::shared_ptr<Loader> numbers() {
  return std::make_shared<DataLoader>(std::make_shared<TensorDataset>(Batch{{"x", at::arange(22, at::kFloat)}}),
                                      DataLoaderOptions{.batch_size = 4});
}

}  // namespace

TEST_CASE("a batch kind is names, shapes and types") {
  const BatchKind kind(batch_of(1));
  CHECK(kind.fits(batch_of(2)));
  CHECK_FALSE(kind.fits(batch_of(2, 3)));
  CHECK_FALSE(kind.fits(Batch{}));
  CHECK_FALSE(kind.fits(Batch{{"x", at::full({4, 3}, 1.0)}}));
  CHECK_FALSE(kind.fits(Batch{{"x", at::full({4, 3}, 1.0)}, {"z", at::full({4}, 1.0)}}));
  CHECK_FALSE(kind.fits(Batch{{"x", at::full({4, 3}, 1.0)}, {"y", at::full({4}, 1.0, at::kDouble)}}));
  CHECK_FALSE(BatchKind().fits(Batch{}));
  const Batch with_list{{"x", std::vector<std::string>{"a"}}};
  CHECK_FALSE(BatchKind(with_list).fits(with_list));
}

TEST_CASE("on a GPU, a prefetcher writes batches of the kind into two sets in turn, and others into fresh memory",
          "[gpu]") {
  require_gpus(1);
  DevicePrefetcher loader(numbers(), kGpu);
  const auto sets = std::make_shared<InputSets>(BatchKind(Batch{{"x", at::full({4}, 0.0)}}));
  loader.write_into(sets);
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    loader.start_epoch(epoch);
    Batch batch;
    std::optional<size_t> before;
    for (int64_t i = 0; i < 6; ++i) {
      CAPTURE(epoch, i);
      batch.clear();
      REQUIRE(loader.next(batch));
      if (i < 5) loader.read_ahead();
      const auto set = sets->find(batch);
      CHECK(set.has_value() == (i < 5));
      if (set && before) CHECK(*set == 1 - *before);
      if (set) before = set;
      CHECK(batch[0].cpu().equal(at::arange(4 * i, i < 5 ? 4 * i + 4 : 22, at::kFloat)));
    }
  }
  CHECK_FALSE(sets->kept());
}

TEST_CASE("on a GPU, a batch that is returned is written again, and not over the one in use", "[gpu]") {
  require_gpus(1);
  DevicePrefetcher loader(numbers(), kGpu);
  loader.write_into(std::make_shared<InputSets>(BatchKind(Batch{{"x", at::full({4}, 0.0)}})));
  loader.start_epoch(0);
  Batch first, second;
  REQUIRE(loader.next(first));
  loader.unread();
  REQUIRE(loader.next(second));
  CHECK(first[0].cpu().equal(second[0].cpu()));
  CHECK(first[0].data_ptr() != second[0].data_ptr());
}

TEST_CASE("on a GPU, a set that is still held is never written to again", "[gpu]") {
  require_gpus(1);
  InputSets sets{BatchKind(batch_of(0))};
  Batch held;
  for (int64_t i = 0; i < 4; ++i) {
    const auto batch = sets.write(batch_of(static_cast<double>(i)), kGpu);
    CHECK(batch.has_value() == (i < 3));
    if (i == 1) held = Batch{batch->entry(0)};
    if (batch) sets.begin(*batch, kGpu);
  }
  CHECK(sets.kept());
  CHECK(held[0].cpu().eq(1).all().item<bool>());
}

}  // namespace input_sets_test
