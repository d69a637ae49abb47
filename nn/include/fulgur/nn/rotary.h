#pragma once

#include "fulgur/core/export.h"
#include "fulgur/core/state/tensor.h"

namespace fulgur::nn {

/// The rotations of rotary positions (Su et al. 2021): angle `position · theta^(-2 i / head_size)` for pair i.
struct Rotation {
  Tensor cos, sin;  ///< (T, head_size / 2), or (N, 1, T, head_size / 2) for positions of each sample
  explicit operator bool() const { return cos.defined(); }
};

/// The rotations at `positions`, int64 (T) or (N, T), on their device. Angles are computed in float32, as Hugging
/// Face's Llama does, or in float64 if `dtype` is float64. Throws an Error unless head_size is even.
FULGUR_API Rotation rotation_at(const Tensor& positions, int64_t head_size, double theta, at::ScalarType dtype);

/// Rotates heads (N, H, T, head_size): element i with element i + head_size / 2, the layout of Hugging Face's Llama
/// (`rotate_half`). The result has the dtype of `heads`; a narrower dtype is rotated in float32.
FULGUR_API Tensor rotate(const Tensor& heads, const Rotation& rotation);

}  // namespace fulgur::nn
