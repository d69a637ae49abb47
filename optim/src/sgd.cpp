#include "fulgur/optim/sgd.h"

#include <ATen/ops/_fused_sgd.h>

#include "fulgur/core/errors.h"
#include "fulgur/core/registry.h"

namespace fulgur {

void Sgd::Options::fields(Fields& f) {
  f(lr, "lr", "Learning rate.").at_least(0);
  f(momentum, "momentum", "Decay rate of the velocity; 0 for none.").at_least(0).less_than(1);
  f(weight_decay, "weight_decay", "Weight decay, added to the gradient.").at_least(0);
  f(nesterov, "nesterov", "Look ahead along the velocity (needs momentum).");
}

Sgd::Sgd(Options options) : options_(options) {
  if (options_.nesterov && options_.momentum == 0)
    throw ConfigError("[optim.SGD] nesterov needs momentum > 0. Set momentum, or leave nesterov off.");
}

std::vector<std::string> Sgd::state_names() const {
  if (options_.momentum == 0) return {};
  return {"momentum_buffer"};
}

void Sgd::update(Bucket& b, const std::optional<Tensor>& found_inf) {
  // Buffers start at zero, which without dampening gives Python's first step, so is_first_step is never needed.
  const at::TensorList buffers = options_.momentum == 0 ? at::TensorList() : at::TensorList(b.state[0]);
  at::_fused_sgd_(b.params, b.grads, buffers, b.group->weight_decay.value_or(options_.weight_decay), options_.momentum, b.group->lr,
                  /*dampening=*/0.0, options_.nesterov, /*maximize=*/false, /*is_first_step=*/false, /*grad_scale=*/std::nullopt,
                  found_inf);
}

[[maybe_unused]] static const bool registered = Registry<Optimizer>::add<Sgd>("SGD", "Stochastic gradient descent on ATen's fused kernel.");

}  // namespace fulgur
