#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace fulgur::detail {

/// Arguments of `_fused_sgd_` besides its lists and the rate.
struct FusedSgdOptions {
  double weight_decay = 0;
  double momentum = 0;
  bool nesterov = false;
  bool maximize = false;
  bool is_first_step = false;
};

/// ATen's `_fused_sgd_`. On the CPU its kernel in 2.11 skips whole vectors of bfloat16 and float16: of 514 weights it
/// updates two. Such tensors are therefore updated in float32 and rounded once, as in CUDA's kernel.
void fused_sgd(at::TensorList params, at::TensorList grads, at::TensorList buffers, const at::Tensor& lr,
               const FusedSgdOptions& options, const std::optional<at::Tensor>& found_inf);
void fused_sgd(at::TensorList params, at::TensorList grads, at::TensorList buffers, double lr,
               const FusedSgdOptions& options, const std::optional<at::Tensor>& found_inf);

}  // namespace fulgur::detail
