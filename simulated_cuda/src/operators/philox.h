#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "twin.h"

namespace simulated_cuda {

/// Random numbers for the elements of a tensor, computed from the generator's seed and offset.
class Draws {
 public:
  Draws(uint64_t seed, uint64_t offset) : seed_(seed), offset_(offset) {}
  explicit Draws(const RandomState& state);
  uint32_t bits(int64_t element, int which) const;
  double uniform(int64_t element) const;       ///< in [0, 1), with 53 bits
  float uniform_float(int64_t element) const;  ///< in [0, 1), with 24 bits
  /// A mask whose elements are true with probability `keep`.
  at::Tensor keep_mask(at::IntArrayRef sizes, double keep) const;

 private:
  uint64_t seed_, offset_;
};

}  // namespace simulated_cuda
