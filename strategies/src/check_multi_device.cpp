#include "check_multi_device.h"

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {

void check_multi_device(const std::string& strategy, const StrategySetup& setup) {
  if (setup.devices.front().is_cpu())
    throw ConfigError(cat(
        "[strategies.", strategy,
        "] the strategy drives several devices from one process, but the CPU is one device. Use trainer.accelerator: "
        "cuda, or virtual to try it without GPUs; for several processes on the CPU, trainer.strategy: ddp."));
  if (setup.num_nodes != 1)
    throw ConfigError(cat("[strategies.", strategy,
                          "] the strategy drives the devices of one machine; trainer.num_nodes is ", setup.num_nodes,
                          ". Set it to 1, or trainer.strategy: ddp."));
  if (setup.sync_batchnorm)
    throw ConfigError(cat("[strategies.", strategy,
                          "] sync_batchnorm works only with several processes (trainer.strategy: ddp). Remove it."));
}

}  // namespace fulgur::detail
