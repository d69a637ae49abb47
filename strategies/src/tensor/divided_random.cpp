#include "tensor/divided_random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <exception>
#include <mutex>

#include "fulgur/core/state/split_mix.h"

namespace fulgur::detail {
namespace {

uint64_t seed_of_rank(int64_t rank) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  const uint64_t common = at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
  return SplitMix64(mix_bits(common) + static_cast<uint64_t>(rank)).next();
}

}  // namespace

DividedRandom::DividedRandom(const at::Device& device, int64_t rank)
    : generator_(at::globalContext().defaultGenerator(device)) {
  const uint64_t seed = seed_of_rank(rank);
  const std::lock_guard lock(generator_.mutex());
  state_ = generator_.get_state();
  generator_.set_current_seed(seed);
}

DividedRandom::~DividedRandom() {
  try {
    const std::lock_guard lock(generator_.mutex());
    generator_.set_state(state_);
  } catch (const std::exception&) {
    // The device has failed; the next call on it reports that.
  }
}

}  // namespace fulgur::detail
