#include "fused_sgd.h"

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_fused_sgd.h>

#include <vector>

namespace fulgur::detail {
namespace {

std::vector<at::Tensor> widened(at::TensorList tensors) {
  std::vector<at::Tensor> wide;
  wide.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) wide.push_back(tensor.to(at::kFloat));
  return wide;
}

template <class Rate>
void call(at::TensorList params, at::TensorList grads, at::TensorList buffers, const Rate& lr, const FusedSgdOptions& o,
          const std::optional<at::Tensor>& found_inf) {
  at::_fused_sgd_(params, grads, buffers, o.weight_decay, o.momentum, lr, /*dampening=*/0, o.nesterov, o.maximize,
                  o.is_first_step, /*grad_scale=*/std::nullopt, found_inf);
}

template <class Rate>
void step(at::TensorList params, at::TensorList grads, at::TensorList buffers, const Rate& lr,
          const FusedSgdOptions& options, const std::optional<at::Tensor>& found_inf) {
  // Every device except CUDA uses the CPU's kernel.
  const bool is_short = !params.empty() && !params[0].is_cuda() &&
                        (params[0].scalar_type() == at::kBFloat16 || params[0].scalar_type() == at::kHalf);
  if (!is_short) return call(params, grads, buffers, lr, options, found_inf);
  const std::vector<at::Tensor> wide_params = widened(params), wide_buffers = widened(buffers);
  call(wide_params, widened(grads), wide_buffers, lr, options, found_inf);
  at::_foreach_copy_(params, wide_params);
  if (!buffers.empty()) at::_foreach_copy_(buffers, wide_buffers);
}

}  // namespace

void fused_sgd(at::TensorList params, at::TensorList grads, at::TensorList buffers, const at::Tensor& lr,
               const FusedSgdOptions& options, const std::optional<at::Tensor>& found_inf) {
  step(params, grads, buffers, lr, options, found_inf);
}

void fused_sgd(at::TensorList params, at::TensorList grads, at::TensorList buffers, double lr,
               const FusedSgdOptions& options, const std::optional<at::Tensor>& found_inf) {
  step(params, grads, buffers, lr, options, found_inf);
}

}  // namespace fulgur::detail
