#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

namespace simulated_cuda {

/// The value in float32 if its dtype is narrower. CUDA kernels compute like this, and round once.
inline at::Tensor widened(const at::Tensor& value) {
  const bool is_short = value.defined() && (value.scalar_type() == at::kHalf || value.scalar_type() == at::kBFloat16);
  return is_short ? value.to(at::kFloat) : value;
}

inline std::optional<at::Tensor> widened(const std::optional<at::Tensor>& value) {
  return value ? std::optional(widened(*value)) : std::nullopt;
}

inline std::vector<at::Tensor> widened(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> wide;
  for (const at::Tensor& tensor : tensors) wide.push_back(widened(tensor));
  return wide;
}

inline at::Tensor in_dtype_of(const at::Tensor& value, const at::Tensor& other) {
  return value.defined() ? value.to(other.scalar_type()) : value;
}

}  // namespace simulated_cuda
