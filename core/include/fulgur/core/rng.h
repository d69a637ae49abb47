#pragma once

#include <cstdint>
#include <optional>

#include "fulgur/core/state_tree.h"

namespace fulgur {

/// Seeds the default generators of every loaded device.
FULGUR_API void seed_everything(uint64_t seed);
/// The seed of a rank's generators: `seed` itself on rank 0, another for each of the rest.
FULGUR_API uint64_t rank_seed(uint64_t seed, int64_t rank);
/// A seed from the system's entropy.
FULGUR_API uint64_t random_seed();
/// States of the default generators of the CPU and, where CUDA is loaded, of `device`.
FULGUR_API StateTree rng_state(const at::Device& device);
FULGUR_API void load_rng_state(const at::Device& device, const StateTree& state);

/// Saves the generators and restores them at the end of its life: evaluation does not move training's numbers.
class FULGUR_API RngGuard {
 public:
  explicit RngGuard(const at::Device& device);
  ~RngGuard();
  RngGuard(const RngGuard&) = delete;
  RngGuard& operator=(const RngGuard&) = delete;

 private:
  at::Device device_;
  StateTree saved_;
};

}  // namespace fulgur
