#include "pipeline/layer_random.h"

#include <ATen/CPUGeneratorImpl.h>

#include <utility>

namespace fulgur::detail {

LayerRandom::LayerRandom(std::vector<at::Device> devices, int64_t place) : devices_(std::move(devices)) {
  const RngGuard outer(devices_);
  const uint64_t seed = rank_seed(~at::detail::getDefaultCPUGenerator().current_seed(), place + 1);
  seed_everything(seed);
  seed_devices(seed, devices_);
  state_ = rng_state(devices_);
}

}  // namespace fulgur::detail
