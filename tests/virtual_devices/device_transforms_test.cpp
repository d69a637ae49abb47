// Transforms on the device before a batch is split among devices, and of batches that were prefetched.
#include "images/made_cifar.h"

#include <catch2/catch_test_macros.hpp>
#include <set>

#include "parted.h"

namespace device_transforms_test {

using namespace fulgur;
using namespace fulgur::test;

namespace {

/// Its hook keeps batches from being prefetched.
struct Watching : Pixels {
  using Pixels::Pixels;
  std::set<std::string> entries;
  Batch on_before_batch_transfer(Batch batch, int64_t) override {
    for (const auto& [name, value] : batch) entries.insert(name);
    return batch;
  }
};

std::map<std::string, Tensor> trained(TrainerOptions options, const TemporaryFolder& folder, size_t on_workers) {
  options.max_epochs = 2;
  const std::shared_ptr<DataModule> data = made_cifar(folder.path(), on_workers, 2);
  return train<Pixels>(std::move(options), {}, data).weights;
}

}  // namespace

TEST_CASE("batches that are prefetched or split among devices are transformed as on the CPU") {
  const TemporaryFolder folder;
  write_made_cifar(folder.path());
  const auto expected = trained(quiet(folder), folder, 5);
  CHECK(same_weights(trained(quiet(folder), folder, 0), expected));
  CHECK(largest_difference(trained(on_virtual(folder, "single_device", 1), folder, 0), expected) < 1e-6);
  // The mean of the parts' losses is rounded otherwise.
  CHECK(largest_difference(trained(on_virtual(folder, "dp", 3), folder, 0), expected) < 1e-5);
  CHECK(largest_difference(trained(on_virtual(folder, "dp", 3), folder, 3), expected) < 1e-5);
}

TEST_CASE("batches that are not prefetched are transformed too, and hooks do not see what was drawn") {
  const TemporaryFolder folder;
  write_made_cifar(folder.path());
  const auto expected = trained(quiet(folder), folder, 5);
  TrainerOptions options = on_virtual(folder, "single_device", 1);
  options.max_epochs = 2;
  const std::shared_ptr<DataModule> data = made_cifar(folder.path(), 0, 2);
  const auto watched = train<Watching>(std::move(options), {}, data);
  CHECK(watched.module->entries == std::set<std::string>{"image", "label"});
  CHECK(largest_difference(watched.weights, expected) < 1e-6);
}

}  // namespace device_transforms_test
