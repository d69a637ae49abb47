#include "fulgur/core/contracts/single_process_strategy.h"

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {

void SingleProcessStrategy::configure(StrategySetup setup) {
  if (device_use() != DeviceUse::all && setup.devices.size() != 1)
    throw ConfigError(cat("[strategies.", name(), "] the strategy drives one device; trainer.devices chose ",
                          setup.devices.size(), ". Set trainer.devices: 1, or trainer.strategy: ddp."));
  if (setup.num_nodes != 1)
    throw ConfigError(cat("[strategies.", name(), "] the strategy runs in one process; trainer.num_nodes is ",
                          setup.num_nodes, ". Set it to 1, or trainer.strategy: ddp."));
  devices_ = std::move(setup.devices);
  precision_ = std::move(setup.precision);
}

void SingleProcessStrategy::attach(LightningModule& module) { convert_and_move(module); }

void SingleProcessStrategy::backward(LightningModule& module, const Tensor& loss, GradSync,
                                     const BackwardOptions& options) {
  module.backward(loss, options);
}

}  // namespace fulgur
