#include "fulgur/optim/sgd.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_neg.h>

#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/text/errors.h"
#include "fused_sgd.h"
#include "momentum_operators.h"

namespace fulgur {

void SGD::Options::fields(Fields& f) {
  f(lr, "lr", "Learning rate.").learning_rate().at_least(0);
  f(momentum, "momentum", "Momentum factor; 0: none.").at_least(0).less_than(1);
  f(weight_decay, "weight_decay", "Weight decay, added to the gradient.").at_least(0);
  f(nesterov, "nesterov", "Use Nesterov momentum (needs momentum, and no dampening).");
  f(dampening, "dampening", "Dampening of the gradient in the momentum buffer.").range(0, 1);
  f(maximize, "maximize", "Maximize the objective instead of minimizing it.");
  parameters.fields(f);
}

SGD::SGD(Options options)
    : FusedOptimizer(options.parameters),
      options_(std::move(options)),
      has_momentum_(options_.momentum != 0),
      is_dampened_(has_momentum_ && options_.dampening != 0) {
  if (options_.nesterov && (!has_momentum_ || options_.dampening != 0))
    throw ConfigError("[optim.SGD] nesterov needs momentum > 0 and dampening 0. Set momentum, or leave nesterov off.");
}

std::optional<double> SGD::momentum() const { return has_momentum_ ? std::optional(options_.momentum) : std::nullopt; }

void SGD::set_momentum(double value) {
  if (!has_momentum_) Optimizer::set_momentum(value);
  options_.momentum = value;
}

std::vector<std::string> SGD::state_names(const Tensor&) const {
  if (!has_momentum_) return {};
  return {"momentum_buffer"};
}

bool SGD::counts_steps(const Tensor&) const { return is_dampened_; }

void SGD::update(Bucket& b, const std::optional<Tensor>& found_inf) {
  if (is_dampened_) return update_dampened(b);
  if (b.momentum.defined() && b.momentum.is_cpu())
    return detail::sgd_with_momentum(
        b.params, b.grads, b.state[0], b.lr, b.momentum,
        {.weight_decay = *weight_decay(*b.group), .nesterov = options_.nesterov, .maximize = options_.maximize},
        found_inf);
  if (b.momentum.defined()) return update_moved(b, found_inf);
  // Buffers start at zero, which without dampening gives Python's first step, so is_first_step is never needed.
  const at::TensorList buffers = has_momentum_ ? at::TensorList(b.state[0]) : at::TensorList();
  const auto step = [&](const auto& lr) {
    detail::fused_sgd(b.params, b.grads, buffers, lr,
                      {.weight_decay = *weight_decay(*b.group),
                       .momentum = options_.momentum,
                       .nesterov = options_.nesterov,
                       .maximize = options_.maximize},
                      found_inf);
  };
  b.with_rate(step);
}

// The kernel takes the momentum μ from the host, and a captured step would keep it. So the velocities are first
// multiplied by it, and the kernel's own is 1. Nesterov's step, lr·(g + μb), is the sum of that of the velocity and
// that of the gradient.
void SGD::update_moved(Bucket& b, const std::optional<Tensor>& found_inf) {
  std::vector<Tensor> gradients = b.grads;
  if (options_.maximize) gradients = at::_foreach_neg(gradients);
  if (const double decay = *weight_decay(*b.group); decay != 0)
    gradients = at::_foreach_add(gradients, b.params, decay);
  subtract(b.state[0], b.state[0], 0, 1 - b.momentum, found_inf);
  const Tensor lr = options_.nesterov ? (b.lr * b.momentum).to(at::kFloat) : b.lr;
  detail::fused_sgd(b.params, gradients, b.state[0], lr, {.momentum = 1}, found_inf);
  if (options_.nesterov) subtract(b.params, gradients, 0, b.lr, found_inf);
}

// Only the device knows which step is a parameter's first, since a gradient scaler may skip it there.
void SGD::update_dampened(Bucket& b) {
  const double decay = *weight_decay(*b.group);
  for (size_t i = 0; i < b.params.size(); ++i) {
    Tensor gradient = options_.maximize ? b.grads[i].neg() : b.grads[i];
    if (decay != 0) gradient = gradient.add(b.params[i], decay);
    const Tensor part =
        b.steps[i].eq(1).to(gradient.scalar_type()).mul_(options_.dampening).add_(1 - options_.dampening);
    b.state[0][i].mul_(options_.momentum).add_(gradient.mul(part));
    if (!b.lr.defined()) b.params[i].add_(b.state[0][i], -b.group->lr);
  }
  if (b.lr.defined()) subtract(b.params, b.state[0], 0, b.lr, std::nullopt);
}

[[maybe_unused]] static const bool registered_sgd =
    Registry<Optimizer>::add<SGD>("SGD", "Stochastic gradient descent on ATen's fused kernel.");

}  // namespace fulgur
