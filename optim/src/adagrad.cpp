#include "fulgur/optim/adagrad.h"

#include <ATen/ops/_fused_adagrad.h>

#include "fulgur/core/contracts/registry.h"

namespace fulgur {

void Adagrad::Options::fields(Fields& f) {
  f(lr, "lr", "Learning rate.").learning_rate().at_least(0);
  f(lr_decay, "lr_decay", "The rate of update t is lr / (1 + (t - 1) * lr_decay).").at_least(0);
  f(weight_decay, "weight_decay", "Weight decay, added to the gradient.").at_least(0);
  f(initial_accumulator_value, "initial_accumulator_value", "Initial value of the sums of squared gradients.")
      .at_least(0);
  f(eps, "eps", "Added to the denominator.").at_least(0);
  f(maximize, "maximize", "Maximize the objective instead of minimizing it.");
  parameters.fields(f);
}

void Adagrad::update(Bucket& b, const std::optional<Tensor>& found_inf) {
  const auto step = [&](const auto& lr) {
    at::_fused_adagrad_(b.params, b.grads, b.state[0], b.steps, lr, options_.lr_decay, *weight_decay(*b.group),
                        options_.eps, options_.maximize,
                        /*grad_scale=*/std::nullopt, found_inf);
  };
  b.with_rate(step);
}

[[maybe_unused]] static const bool registered_adagrad =
    Registry<Optimizer>::add<Adagrad>("Adagrad", "Adagrad on ATen's fused kernel (Duchi, Hazan and Singer 2011).");

}  // namespace fulgur
