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

void SingleDeviceStrategy::batch_to_device(LightningModule& module, DataModule* data, Batch& batch, int64_t loader_idx) {
  precision_->convert_input(batch);
  if (data) {
    batch = data->on_before_batch_transfer(module, std::move(batch), loader_idx);
    batch = data->transfer_batch_to_device(module, std::move(batch), device_, loader_idx);
    batch = data->on_after_batch_transfer(module, std::move(batch), loader_idx);
    return;
  }
  const HookMask& overridden = module.overridden();
  if (overridden.has(Hook::on_before_batch_transfer)) batch = module.on_before_batch_transfer(std::move(batch), loader_idx);
  if (overridden.has(Hook::transfer_batch_to_device) || !batch.is_on(device_))
    batch = module.transfer_batch_to_device(std::move(batch), device_, loader_idx);
  if (overridden.has(Hook::on_after_batch_transfer)) batch = module.on_after_batch_transfer(std::move(batch), loader_idx);
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
