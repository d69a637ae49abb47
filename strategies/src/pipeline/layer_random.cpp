#include "pipeline/layer_random.h"

#include <ATen/CPUGeneratorImpl.h>

#include <exception>
#include <utility>

namespace fulgur::detail {

LayerRandom::LayerRandom(std::vector<at::Device> devices, int64_t place) : devices_(std::move(devices)) {
  const RngGuard outer(devices_);
  const uint64_t seed = rank_seed(~at::detail::getDefaultCPUGenerator().current_seed(), place + 1);
  seed_everything(seed);
  seed_devices(seed, devices_);
  state_ = rng_state(devices_);
}

LayerRandom::Scope::Scope(LayerRandom& of) : of_(of), outer_(of.devices_) { load_rng_state(of.devices_, of.state_); }

LayerRandom::Scope::~Scope() {
  try {
    of_.state_ = rng_state(of_.devices_);
  } catch (const std::exception&) {
    // The device has failed; an exception that is under way reports it, or the next call on the device.
  }
}

}  // namespace fulgur::detail
