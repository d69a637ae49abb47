#pragma once

#include <ATen/ops/ones.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <catch2/catch_test_macros.hpp>
#include <mutex>
#include <set>
#include <thread>

#include "fulgur/core/contracts/dataset.h"
#include "trainer/boring.h"

namespace fulgur::test {

/// Makes tensors on "the" device in its steps.
struct OnTheDevice : SelfPlanned {
  at::DeviceType kind;
  explicit OnTheDevice(at::DeviceType type) : kind(type) {}
  StepOutput training_step(const Batch& batch, int64_t) override {
    const Tensor mask = at::ones({batch[0].size(0), 4}, at::TensorOptions().device(kind));
    CHECK(mask.device() == batch[0].device());
    const Tensor loss = at::mse_loss(forward(batch[0] * mask), batch[1]);
    log("train_loss", loss);
    return loss;
  }
};

/// Notes what "the" device is on threads of the loader.
struct Asking : BatchDataset {
  at::DeviceType kind;
  const std::thread::id caller = std::this_thread::get_id();
  mutable std::mutex mutex;
  mutable std::set<int> seen;
  explicit Asking(at::DeviceType type) : kind(type) {}
  int64_t size() const override { return 32; }
  Batch get(c10::ArrayRef<int64_t> indices, const SampleContext&) const override {
    const auto samples = static_cast<int64_t>(indices.size());
    const std::lock_guard lock(mutex);
    if (std::this_thread::get_id() != caller) seen.insert(c10::impl::VirtualGuardImpl(kind).getDevice().index());
    return Batch{{"x", at::ones({samples, 4})}, {"y", at::ones({samples, 2})}};
  }
};

/// A run on the second device: without an index, its kind means that one in steps and in the loader's threads, until it
/// ends.
inline void check_second_device(const std::string& accelerator, at::DeviceType kind) {
  const TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  options.accelerator = accelerator;
  options.devices = std::vector<int64_t>{1};
  const auto dataset = std::make_shared<Asking>(kind);
  const std::shared_ptr<Loader> loader =
      std::make_shared<DataLoader>(dataset, DataLoaderOptions{.batch_size = 4, .num_workers = 2});
  const FitReport report = Trainer(options).fit(std::make_shared<OnTheDevice>(kind), loader);
  CHECK(report.global_step == 8);
  CHECK(dataset->seen == std::set<int>{1});
  CHECK(c10::impl::VirtualGuardImpl(kind).getDevice().index() == 0);
}

}  // namespace fulgur::test
