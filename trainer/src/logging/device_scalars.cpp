#include "logging/device_scalars.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace fulgur::detail {
namespace {

constexpr int64_t kBlock = 32;

}  // namespace

Tensor DeviceScalars::add(at::Device device, Place& place) {
  size_t block = 0;
  while (block < blocks_.size() && (blocks_[block].values.device() != device || blocks_[block].used == kBlock)) ++block;
  if (block == blocks_.size()) {
    // A tensor created in inference mode could not be written to outside it.
    const c10::InferenceMode normal(false);
    blocks_.push_back({at::empty({kBlock}, at::TensorOptions().dtype(at::kDouble).device(device))});
  }
  place = {block, blocks_[block].used++};
  const c10::InferenceMode normal(false);
  at::NoGradGuard no_grad;
  return blocks_[block].values.select(0, place.index);
}

DeviceScalars::Values DeviceScalars::values() const {
  at::NoGradGuard no_grad;
  Values copies;
  for (const Block& block : blocks_) copies.push_back(block.values.clone());
  return copies;
}

void DeviceScalars::restore(const Values& values) {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < values.size(); ++i) blocks_[i].values.copy_(values[i], /*non_blocking=*/true);
}

DeviceScalars::Reading DeviceScalars::read() const {
  at::NoGradGuard no_grad;
  const c10::InferenceMode normal(false);
  Reading reading;
  for (const Block& block : blocks_) {
    const Tensor used = block.values.narrow(0, 0, block.used);
    if (!used.is_cuda()) {
      reading.on_host_.push_back(used.is_cpu() ? used.clone() : used.cpu());
      continue;
    }
    Tensor on_host = at::empty({block.used}, at::TensorOptions().dtype(at::kDouble).pinned_memory(true));
    on_host.copy_(used, /*non_blocking=*/true);
    auto copied = std::make_shared<c10::Event>(used.device().type());
    copied->record(c10::impl::VirtualGuardImpl(used.device().type()).getStream(used.device()));
    reading.on_host_.push_back(std::move(on_host));
    reading.copied_.push_back(std::move(copied));
  }
  return reading;
}

bool DeviceScalars::Reading::there() const {
  for (const auto& copied : copied_)
    if (!copied->query()) return false;
  return true;
}

void DeviceScalars::Reading::wait() const {
  for (const auto& copied : copied_)
    if (!copied->query()) copied->synchronize();
}

double DeviceScalars::Reading::at(Place place) const {
  return on_host_[place.block].const_data_ptr<double>()[place.index];
}

}  // namespace fulgur::detail
