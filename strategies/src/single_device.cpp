#include "fulgur/strategies/single_device.h"

#include "fulgur/core/accelerator.h"
#include "fulgur/core/text.h"

namespace fulgur {

void SingleDeviceStrategy::configure(StrategySetup setup) {
  if (setup.devices.size() != 1)
    throw ConfigError(cat("[strategies.single_device] the strategy drives one device; trainer.devices chose ",
                          setup.devices.size(), ". Set trainer.devices: 1, or trainer.strategy: ddp."));
  if (setup.num_nodes != 1)
    throw ConfigError(cat("[strategies.single_device] the strategy drives one device; trainer.num_nodes is ",
                          setup.num_nodes, ". Set it to 1, or trainer.strategy: ddp."));
  device_ = setup.devices.front();
  precision_ = std::move(setup.precision);
}

void SingleDeviceStrategy::attach(LightningModule& module) { convert_and_move(module); }

void SingleDeviceStrategy::backward(LightningModule& module, const Tensor& loss, GradSync,
                                    const BackwardOptions& options) {
  module.backward(loss, options);
}

std::unique_ptr<GraphCapture> SingleDeviceStrategy::make_graph_capture() {
  const Accelerator* accelerator = find_accelerator(c10::DeviceTypeName(device_.type(), /*lower_case=*/true));
  return accelerator ? accelerator->make_graph_capture(device_.index()) : nullptr;
}

[[maybe_unused]] static const bool registered_single_device =
    Registry<Strategy>::add<SingleDeviceStrategy>("single_device", "One process on one device.");

}  // namespace fulgur
