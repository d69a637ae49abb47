#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "fused_adam.h"
#include "fused_sgd.h"

namespace fulgur::detail {

// ATen's fused kernels take the momentum from the host. These are operators of the dispatcher that read it, and the
// rate, from tensors of the CPU when they run: a captured step that replays them follows a schedule, with the bits of
// an eager step.

/// `fused_adam` with a first beta that is a float64 scalar on the CPU, like `lr`; `options.beta1` is not used.
void adam_with_beta(at::TensorList params, at::TensorList grads, at::TensorList averages, at::TensorList squares,
                    at::TensorList maximum, at::TensorList steps, const at::Tensor& lr, const at::Tensor& beta1,
                    const FusedAdamOptions& options, const std::optional<at::Tensor>& found_inf);

/// `fused_sgd` with a momentum that is a float64 scalar on the CPU, like `lr`; `options.momentum` is not used.
void sgd_with_momentum(at::TensorList params, at::TensorList grads, at::TensorList buffers, const at::Tensor& lr,
                       const at::Tensor& momentum, const FusedSgdOptions& options,
                       const std::optional<at::Tensor>& found_inf);

}  // namespace fulgur::detail
