#include "several_devices.h"

#include <algorithm>

#include "fulgur/core/errors.h"
#include "fulgur/core/text.h"

namespace fulgur::detail {

void check_several_devices(const std::string& strategy, const StrategySetup& setup) {
  if (setup.devices.front().is_cpu())
    throw ConfigError(cat("[strategies.", strategy, "] the strategy drives several devices from one process, and the CPU is one. Use trainer.accelerator: cuda, or virtual to try it "
                          "without GPUs; for several processes on the CPU, trainer.strategy: ddp."));
  if (setup.num_nodes != 1)
    throw ConfigError(cat("[strategies.", strategy, "] the strategy drives the devices of one machine; trainer.num_nodes is ", setup.num_nodes, ". Set it to 1, or trainer.strategy: ddp."));
  if (setup.sync_batchnorm)
    throw ConfigError(cat("[strategies.", strategy, "] sync_batchnorm is for processes (trainer.strategy: ddp). Leave it out."));
}

std::vector<int64_t> chunk_sizes(int64_t samples, int64_t parts) {
  parts = std::min(parts, samples);
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i < parts; ++i) sizes.push_back(samples / parts + (i < samples % parts ? 1 : 0));
  return sizes;
}

}  // namespace fulgur::detail
