#include "fulgur/strategies/single_device.h"

#include "fulgur/core/text.h"

namespace fulgur {

void SingleDeviceStrategy::configure(std::vector<at::Device> devices, std::shared_ptr<Precision> precision) {
  if (devices.size() != 1)
    throw ConfigError(cat("[strategies.single_device] the strategy drives one device; trainer.devices chose ", devices.size(),
                          ". Set trainer.devices: 1."));
  device_ = devices.front();
  precision_ = std::move(precision);
}

void SingleDeviceStrategy::attach(LightningModule& module) {
  precision_->convert_module(module);
  module.to(device_);
}

Batch SingleDeviceStrategy::batch_to_device(LightningModule& module, DataModule* data, Batch batch, int64_t loader_idx) {
  batch = precision_->convert_input(std::move(batch));
  if (data) {
    batch = data->on_before_batch_transfer(module, std::move(batch), loader_idx);
    batch = data->transfer_batch_to_device(module, std::move(batch), device_, loader_idx);
    return data->on_after_batch_transfer(module, std::move(batch), loader_idx);
  }
  batch = module.on_before_batch_transfer(std::move(batch), loader_idx);
  batch = module.transfer_batch_to_device(std::move(batch), device_, loader_idx);
  return module.on_after_batch_transfer(std::move(batch), loader_idx);
}

void SingleDeviceStrategy::backward(LightningModule& module, const Tensor& loss, GradSync, const BackwardOptions& options) {
  module.backward(loss, options);
}

void SingleDeviceStrategy::optimizer_step(Optimizer& optimizer, const Closure& closure, const std::optional<Tensor>& found_inf) {
  if (closure) optimizer.step_closure(closure);
  else precision_->step(optimizer, found_inf);
}

[[maybe_unused]] static const bool registered =
    Registry<Strategy>::add<SingleDeviceStrategy>("single_device", "One process on one device.");

}  // namespace fulgur
