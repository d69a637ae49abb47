#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "fulgur/core/state_tree.h"

namespace fulgur {

/// Seeds the default generators of every loaded device.
FULGUR_API void seed_everything(uint64_t seed);
/// The seed of a rank's generators: `seed` itself on rank 0, another for each of the rest.
FULGUR_API uint64_t rank_seed(uint64_t seed, int64_t rank);
/// A seed from the system's entropy.
FULGUR_API uint64_t random_seed();
/// Seeds the generators of `devices`, those behind the first as ranks of their own.
FULGUR_API void seed_devices(uint64_t seed, const std::vector<at::Device>& devices);
/// States of the default generators of the CPU and of those of `devices` that have one of their own.
FULGUR_API StateTree rng_state(const std::vector<at::Device>& devices);
/// Those of `devices` that the state has; the rest go on as they are.
FULGUR_API void load_rng_state(const std::vector<at::Device>& devices, const StateTree& state);

/// Saves the generators and restores them at the end of its life: evaluation does not move training's numbers.
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
