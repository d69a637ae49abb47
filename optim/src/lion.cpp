#include "fulgur/optim/lion.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_neg.h>
#include <ATen/ops/_foreach_sign.h>

#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {

void Lion::Options::fields(Fields& f) {
  f(lr, "lr", "Learning rate.").learning_rate().at_least(0);
  f(betas, "betas", "Decay rates of the average: the first is used in the update, the second for the stored average.")
      .at_least(0)
      .less_than(1)
      .items(2);
  f(weight_decay, "weight_decay", "Weight decay, decoupled from the gradient.").at_least(0);
  f(maximize, "maximize", "Maximize the objective instead of minimizing it.");
  parameters.fields(f);
}

Lion::Lion(Options options) : FusedOptimizer(options.parameters), options_(std::move(options)) {
  if (options_.betas.size() != 2)
    throw ConfigError(cat("[optim.Lion] betas must be two numbers; got ", options_.betas.size(), "."));
}

void Lion::update(Bucket& b, const std::optional<Tensor>&) {
  const double decay = *weight_decay(*b.group);
  const std::vector<Tensor> gradients = options_.maximize ? at::_foreach_neg(b.grads) : b.grads;
  const std::vector<Tensor> directions = at::_foreach_lerp(b.state[0], gradients, 1 - options_.betas[0]);
  at::_foreach_sign_(directions);
  if (b.lr.defined()) {
    if (decay != 0 && b.lr.is_cpu())
      at::_foreach_mul_(b.params, 1 - b.lr * decay);  // with the bits of a rate on the host
    else if (decay != 0)
      subtract(b.params, b.params, 0, b.lr * decay, std::nullopt);
    subtract(b.params, directions, 0, b.lr, std::nullopt);
  } else {
    if (decay != 0) at::_foreach_mul_(b.params, 1 - b.group->lr * decay);
    at::_foreach_add_(b.params, directions, -b.group->lr);
  }
  at::_foreach_lerp_(b.state[0], gradients, 1 - options_.betas[1]);
}

[[maybe_unused]] static const bool registered_lion =
    Registry<Optimizer>::add<Lion>("Lion", "Lion: steps by the sign of the momentum (Chen et al. 2023).");

}  // namespace fulgur
