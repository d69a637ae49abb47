#include "fulgur/strategies/single_device.h"

#include "fulgur/core/text.h"

namespace fulgur {

void SingleDeviceStrategy::configure(StrategySetup setup) {
  if (setup.devices.size() != 1)
    throw ConfigError(cat("[strategies.single_device] the strategy drives one device; trainer.devices chose ", setup.devices.size(),
                          ". Set trainer.devices: 1, or trainer.strategy: ddp."));
  if (setup.num_nodes != 1)
    throw ConfigError(cat("[strategies.single_device] the strategy drives one device; trainer.num_nodes is ", setup.num_nodes, ". Set it to 1, or trainer.strategy: ddp."));
  device_ = setup.devices.front();
  precision_ = std::move(setup.precision);
}

void SingleDeviceStrategy::attach(LightningModule& module) {
  precision_->convert_module(module);
  module.to(device_);
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
