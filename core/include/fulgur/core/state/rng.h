#pragma once

#include <cstdint>
#include <vector>

#include "fulgur/core/state/state_tree.h"

namespace fulgur {

/// Seeds the default generators of every loaded device.
FULGUR_API void seed_everything(uint64_t seed);
/// The seed of a rank's generators: `seed` itself on rank 0, a different one on each other rank.
FULGUR_API uint64_t rank_seed(uint64_t seed, int64_t rank);
/// A seed from the system's entropy.
FULGUR_API uint64_t random_seed();
/// Seeds the generators of `devices`; those after the first are seeded like further ranks.
FULGUR_API void seed_devices(uint64_t seed, const std::vector<at::Device>& devices);
/// States of the default generators of the CPU and of those of `devices` that have their own.
FULGUR_API StateTree rng_state(const std::vector<at::Device>& devices);
/// Restores those of `devices` that are in the state; the others are left unchanged.
FULGUR_API void load_rng_state(const std::vector<at::Device>& devices, const StateTree& state);

/// Saves the generators and restores them on destruction: evaluation does not affect training's random numbers. The
/// generator of a device that has failed is not restored; the destructor does not throw.
class FULGUR_API RngGuard {
 public:
  explicit RngGuard(std::vector<at::Device> devices);
  ~RngGuard();
  RngGuard(const RngGuard&) = delete;
  RngGuard& operator=(const RngGuard&) = delete;

 private:
  std::vector<at::Device> devices_;
  StateTree saved_;
};

}  // namespace fulgur
