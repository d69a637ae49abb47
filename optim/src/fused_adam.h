#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>

#include <optional>

namespace fulgur::detail {

/// Arguments of `_fused_adam_` and `_fused_adamw_` besides their lists and the rate.
struct FusedAdamOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double weight_decay = 0;
  double eps = 1e-8;
  bool amsgrad = false;
  bool maximize = false;
  bool decays_apart = false;  ///< AdamW
};

/// ATen's `_fused_adam_` or `_fused_adamw_`; the rate is a number or a tensor.
template <class Rate>
void fused_adam(at::TensorList params, at::TensorList grads, at::TensorList averages, at::TensorList squares,
                at::TensorList maximum, at::TensorList steps, const Rate& lr, const FusedAdamOptions& o,
                const std::optional<at::Tensor>& found_inf) {
  const auto launch = [&](auto kernel) {
    kernel(params, grads, averages, squares, maximum, steps, lr, o.beta1, o.beta2, o.weight_decay, o.eps, o.amsgrad,
           o.maximize, /*grad_scale=*/std::nullopt, found_inf);
  };
  if (o.decays_apart)
    launch([](auto&&... arguments) { at::_fused_adamw_(arguments...); });
  else
    launch([](auto&&... arguments) { at::_fused_adam_(arguments...); });
}

}  // namespace fulgur::detail
