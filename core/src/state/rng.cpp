#include "fulgur/core/state/rng.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <exception>
#include <mutex>
#include <random>
#include <string>
#include <utility>

#include "fulgur/core/state/split_mix.h"

namespace fulgur {
namespace {

Tensor generator_state(const at::Generator& generator) {
  at::Generator copy = generator;
  std::lock_guard<std::mutex> lock(copy.mutex());
  return copy.get_state();
}

void set_generator_state(at::Generator generator, const Tensor& state) {
  std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

// The first device uses the key of single-device checkpoints.
std::string key_of(size_t index) { return index == 0 ? "device" : "device_" + std::to_string(index); }

}  // namespace

void seed_everything(uint64_t seed) { at::manual_seed(seed); }

uint64_t rank_seed(uint64_t seed, int64_t rank) {
  return rank == 0 ? seed : mix_bits(mix_bits(seed) + static_cast<uint64_t>(rank));
}

uint64_t random_seed() {
  std::random_device source;
  return source();  // 32 bits, so that the seed is easy to copy into a config
}

void seed_devices(uint64_t seed, const std::vector<at::Device>& devices) {
  for (size_t i = 1; i < devices.size(); ++i) {
    if (devices[i].is_cpu()) continue;
    at::Generator generator = at::globalContext().defaultGenerator(devices[i]);
    std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_current_seed(rank_seed(seed, static_cast<int64_t>(i)));
  }
}

StateTree rng_state(const std::vector<at::Device>& devices) {
  StateTree state;
  state["cpu"] = generator_state(at::detail::getDefaultCPUGenerator());
  for (size_t i = 0; i < devices.size(); ++i)
    if (!devices[i].is_cpu()) state[key_of(i)] = generator_state(at::globalContext().defaultGenerator(devices[i]));
  return state;
}

void load_rng_state(const std::vector<at::Device>& devices, const StateTree& state) {
  set_generator_state(at::detail::getDefaultCPUGenerator(), state.at("cpu").tensor());
  for (size_t i = 0; i < devices.size(); ++i)
    if (!devices[i].is_cpu() && state.contains(key_of(i)))
      set_generator_state(at::globalContext().defaultGenerator(devices[i]), state.at(key_of(i)).tensor());
}

RngGuard::RngGuard(std::vector<at::Device> devices) : devices_(std::move(devices)), saved_(rng_state(devices_)) {}
RngGuard::~RngGuard() {
  try {
    load_rng_state(devices_, saved_);
  } catch (const std::exception&) {
    // The device has failed; the next call on it reports that, or an exception that is under way does.
  }
}

}  // namespace fulgur
