#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>

#include "fulgur/core/state/tensor.h"

namespace fulgur::detail {

/// During its lifetime, the default generator of a device draws other numbers on each rank, for values of which each
/// has a part. Afterwards it draws the numbers that it would have drawn without this. The seed is a number of the CPU's
/// default generator, which draws the same numbers on all ranks: so a checkpoint and a recompute need no other state.
class DividedRandom {
 public:
  DividedRandom(const at::Device& device, int64_t rank);
  ~DividedRandom();
  DividedRandom(const DividedRandom&) = delete;
  DividedRandom& operator=(const DividedRandom&) = delete;

 private:
  at::Generator generator_;
  Tensor state_;
};

}  // namespace fulgur::detail
