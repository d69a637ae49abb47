#include "fulgur/core/rng.h"

#include <ATen/Context.h>
#include <ATen/CPUGeneratorImpl.h>

#include <mutex>
#include <random>

#include "fulgur/core/split_mix.h"

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

}  // namespace

void seed_everything(uint64_t seed) { at::manual_seed(seed); }

uint64_t rank_seed(uint64_t seed, int64_t rank) { return rank == 0 ? seed : mix_bits(mix_bits(seed) + static_cast<uint64_t>(rank)); }

uint64_t random_seed() {
  std::random_device source;
  return source();  // 32 bits, so that the seed is easy to copy into a config
}

StateTree rng_state(const at::Device& device) {
  StateTree state;
  state["cpu"] = generator_state(at::detail::getDefaultCPUGenerator());
  if (!device.is_cpu()) state["device"] = generator_state(at::globalContext().defaultGenerator(device));
  return state;
}

void load_rng_state(const at::Device& device, const StateTree& state) {
  set_generator_state(at::detail::getDefaultCPUGenerator(), state.at("cpu").tensor());
  if (!device.is_cpu() && state.contains("device"))
    set_generator_state(at::globalContext().defaultGenerator(device), state.at("device").tensor());
}

RngGuard::RngGuard(const at::Device& device) : device_(device), saved_(rng_state(device)) {}
RngGuard::~RngGuard() { load_rng_state(device_, saved_); }

}  // namespace fulgur
