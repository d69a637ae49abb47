#include "fulgur/optim/rmsprop.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_neg.h>
#include <ATen/ops/_foreach_sqrt.h>

#include "fulgur/core/contracts/registry.h"

namespace fulgur {

void RMSprop::Options::fields(Fields& f) {
  f(lr, "lr", "Learning rate.").learning_rate().at_least(0);
  f(alpha, "alpha", "Decay rate of the average of squared gradients.").range(0, 1);
  f(eps, "eps", "Added to the denominator.").at_least(0);
  f(weight_decay, "weight_decay", "Weight decay, added to the gradient.").at_least(0);
  f(momentum, "momentum", "Momentum factor; 0: none.").at_least(0).less_than(1);
  f(centered, "centered", "Divide by the standard deviation of the gradient instead of its root mean square.");
  f(maximize, "maximize", "Maximize the objective instead of minimizing it.");
  parameters.fields(f);
}

std::optional<double> RMSprop::momentum() const {
  return has_momentum_ ? std::optional(options_.momentum) : std::nullopt;
}

void RMSprop::set_momentum(double value) {
  if (!has_momentum_) Optimizer::set_momentum(value);
  options_.momentum = value;
}

std::vector<std::string> RMSprop::state_names(const Tensor&) const {
  std::vector<std::string> names{"square_avg"};
  if (options_.centered) names.emplace_back("grad_avg");
  if (has_momentum_) names.emplace_back("momentum_buffer");
  return names;
}

void RMSprop::update(Bucket& b, const std::optional<Tensor>&) {
  const double decay = *weight_decay(*b.group);
  std::vector<Tensor> gradients = options_.maximize ? at::_foreach_neg(b.grads) : b.grads;
  if (decay != 0) gradients = at::_foreach_add(gradients, b.params, decay);
  const std::vector<Tensor>& squares = b.state[0];
  at::_foreach_mul_(squares, options_.alpha);
  at::_foreach_addcmul_(squares, gradients, gradients, 1 - options_.alpha);
  std::vector<Tensor> denominators;
  if (options_.centered) {
    at::_foreach_lerp_(b.state[1], gradients, 1 - options_.alpha);
    denominators = at::_foreach_addcmul(squares, b.state[1], b.state[1], -1);
    at::_foreach_sqrt_(denominators);
  } else {
    denominators = at::_foreach_sqrt(squares);
  }
  at::_foreach_add_(denominators, options_.eps);
  if (has_momentum_) {
    const std::vector<Tensor>& velocities = b.state.back();
    at::_foreach_mul_(velocities, options_.momentum);
    at::_foreach_addcdiv_(velocities, gradients, denominators);
    if (b.lr.defined())
      subtract(b.params, velocities, 0, b.lr, std::nullopt);
    else
      at::_foreach_add_(b.params, velocities, -b.group->lr);
  } else if (b.lr.defined() && b.lr.is_cpu()) {
    // With the bits of a rate on the host: the kernel computes (-lr · gradient) / denominator.
    at::_foreach_addcdiv_(b.params, at::_foreach_mul(gradients, -b.lr), denominators, 1);
  } else if (b.lr.defined()) {
    subtract(b.params, at::_foreach_div(gradients, denominators), 0, b.lr, std::nullopt);
  } else {
    at::_foreach_addcdiv_(b.params, gradients, denominators, -b.group->lr);
  }
}

[[maybe_unused]] static const bool registered_rmsprop =
    Registry<Optimizer>::add<RMSprop>("RMSprop", "RMSprop on ATen's foreach operations.");

}  // namespace fulgur
