#include "ambient_state.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <mutex>

#include "fulgur/core/device/recorded_random.h"

namespace fulgur::nn {
namespace autocast = at::autocast;

AutocastState::AutocastState(const std::vector<at::Device>& devices) : cache_(autocast::is_autocast_cache_enabled()) {
  std::vector<at::DeviceType> types = {at::kCPU, at::kCUDA};
  for (const at::Device& device : devices)
    if (std::ranges::find(types, device.type()) == types.end() && autocast::is_autocast_available(device.type()))
      types.push_back(device.type());
  for (const at::DeviceType type : types)
    types_.push_back({type, autocast::is_autocast_enabled(type), autocast::get_autocast_dtype(type)});
}

void AutocastState::put() const {
  for (const OfType& of : types_) {
    autocast::set_autocast_enabled(of.type, of.enabled);
    autocast::set_autocast_dtype(of.type, of.dtype);
  }
  autocast::set_autocast_cache_enabled(cache_);
}

AutocastState::Guard::Guard(const AutocastState& state) {
  for (const OfType& of : state.types_) devices_.emplace_back(of.type);
  before_.emplace_back(devices_);
  autocast::increment_nesting();
  state.put();
}

AutocastState::Guard::~Guard() {
  if (autocast::decrement_nesting() == 0) autocast::clear_cache();
  before_[0].put();
}

GeneratorStates::Of GeneratorStates::now(at::Generator generator) {
  if (const RecordedRandom* const recorded = recorded_random(generator.device().type()))
    if (const auto position = recorded->position(generator.device())) return {generator, {}, position};
  std::lock_guard<std::mutex> lock(generator.mutex());
  Tensor state = generator.get_state();
  return {generator, std::move(state)};
}

void GeneratorStates::put(const std::vector<Of>& generators) {
  for (const Of& of : generators) {
    at::Generator generator = of.generator;
    if (of.position) {
      recorded_random(generator.device().type())->set_position(generator.device(), *of.position);
      continue;
    }
    std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(of.state);
  }
}

GeneratorStates::GeneratorStates(const std::vector<at::Device>& devices) {
  generators_.push_back(now(at::detail::getDefaultCPUGenerator()));
  for (const at::Device& device : devices)
    if (!device.is_cpu() && !device.is_meta()) generators_.push_back(now(at::globalContext().defaultGenerator(device)));
}

void GeneratorStates::keep_moved() {
  std::erase_if(generators_, [](const Of& of) {
    const Of current = now(of.generator);
    if (of.position || current.position) return of.position == current.position;
    // Without an operation, which a captured step could not repeat. States are bytes on the host for each device.
    return of.state.nbytes() == current.state.nbytes() &&
           std::memcmp(of.state.const_data_ptr(), current.state.const_data_ptr(), of.state.nbytes()) == 0;
  });
}

GeneratorStates::Guard::Guard(const GeneratorStates& states) {
  for (const Of& of : states.generators_) before_.push_back(now(of.generator));
  put(states.generators_);
}

GeneratorStates::Guard::~Guard() {
  try {
    put(before_);
  } catch (const std::exception&) {
    // The device has failed; the next call on it reports that.
  }
}

}  // namespace fulgur::nn
