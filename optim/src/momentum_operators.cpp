#include "momentum_operators.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/library.h>

#include "fulgur/core/state/typed_operator.h"

namespace fulgur::detail {
namespace {

void adam_on_cpu(at::TensorList params, at::TensorList grads, at::TensorList averages, at::TensorList squares,
                 at::TensorList maximum, at::TensorList steps, const at::Tensor& lr, const at::Tensor& beta1,
                 double beta2, double weight_decay, double eps, bool amsgrad, bool maximize, bool decays_apart,
                 const std::optional<at::Tensor>& found_inf) {
  fused_adam(params, grads, averages, squares, maximum, steps, lr.item<double>(),
             {.beta1 = beta1.item<double>(),
              .beta2 = beta2,
              .weight_decay = weight_decay,
              .eps = eps,
              .amsgrad = amsgrad,
              .maximize = maximize,
              .decays_apart = decays_apart},
             found_inf);
}

void sgd_on_cpu(at::TensorList params, at::TensorList grads, at::TensorList buffers, const at::Tensor& lr,
                const at::Tensor& momentum, double weight_decay, bool nesterov, bool maximize,
                const std::optional<at::Tensor>& found_inf) {
  fused_sgd(
      params, grads, buffers, lr.item<double>(),
      {.weight_decay = weight_decay, .momentum = momentum.item<double>(), .nesterov = nesterov, .maximize = maximize},
      found_inf);
}

TORCH_LIBRARY(fulgur_optim, library) {
  library.def(
      "adam_with_beta_(Tensor(a!)[] params, Tensor(b!)[] grads, Tensor(c!)[] averages, Tensor(d!)[] squares, "
      "Tensor(e!)[] maximum, Tensor[] steps, Tensor lr, Tensor beta1, float beta2, float weight_decay, float eps, "
      "bool amsgrad, bool maximize, bool decays_apart, Tensor? found_inf) -> ()");
  library.def(
      "sgd_with_momentum_(Tensor(a!)[] params, Tensor(b!)[] grads, Tensor(c!)[] buffers, Tensor lr, Tensor momentum, "
      "float weight_decay, bool nesterov, bool maximize, Tensor? found_inf) -> ()");
}

TORCH_LIBRARY_IMPL(fulgur_optim, CPU, library) {
  library.impl("adam_with_beta_", &adam_on_cpu);
  library.impl("sgd_with_momentum_", &sgd_on_cpu);
}

}  // namespace

void adam_with_beta(at::TensorList params, at::TensorList grads, at::TensorList averages, at::TensorList squares,
                    at::TensorList maximum, at::TensorList steps, const at::Tensor& lr, const at::Tensor& beta1,
                    const FusedAdamOptions& o, const std::optional<at::Tensor>& found_inf) {
  static const auto operation = typed_operator<decltype(adam_on_cpu)>("fulgur_optim::adam_with_beta_");
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  operation.call(params, grads, averages, squares, maximum, steps, lr, beta1, o.beta2, o.weight_decay, o.eps, o.amsgrad,
                 o.maximize, o.decays_apart, found_inf);
}

void sgd_with_momentum(at::TensorList params, at::TensorList grads, at::TensorList buffers, const at::Tensor& lr,
                       const at::Tensor& momentum, const FusedSgdOptions& o,
                       const std::optional<at::Tensor>& found_inf) {
  static const auto operation = typed_operator<decltype(sgd_on_cpu)>("fulgur_optim::sgd_with_momentum_");
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  operation.call(params, grads, buffers, lr, momentum, o.weight_decay, o.nesterov, o.maximize, found_inf);
}

}  // namespace fulgur::detail
