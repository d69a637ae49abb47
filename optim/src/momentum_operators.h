#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "fused_sgd.h"

namespace fulgur::detail {

// ATen's fused kernels take the momentum from the host. These are operators of the dispatcher that read it, and the
// rate, from tensors of the CPU when they run: a captured step that replays them follows a schedule, with the bits of
// an eager step.

/// Arguments of `_fused_adam_` and `_fused_adamw_` besides their lists, the rate and the first beta.
struct FusedAdamOptions {
  double beta2 = 0.999;
  double weight_decay = 0;
  double eps = 1e-8;
  bool amsgrad = false;
  bool maximize = false;
  bool decays_apart = false;  ///< AdamW
};

/// `lr` and `beta1` are float64 scalars on the CPU, like all lists.
void adam_with_beta(at::TensorList params, at::TensorList grads, at::TensorList averages, at::TensorList squares,
                    at::TensorList maximum, at::TensorList steps, const at::Tensor& lr, const at::Tensor& beta1,
                    const FusedAdamOptions& options, const std::optional<at::Tensor>& found_inf);

/// `fused_sgd` with a momentum that is a float64 scalar on the CPU, like `lr`; `options.momentum` is not used.
void sgd_with_momentum(at::TensorList params, at::TensorList grads, at::TensorList buffers, const at::Tensor& lr,
                       const at::Tensor& momentum, const FusedSgdOptions& options,
                       const std::optional<at::Tensor>& found_inf);

}  // namespace fulgur::detail
