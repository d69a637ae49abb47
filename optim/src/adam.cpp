#include "fulgur/optim/adam.h"

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>

#include "fulgur/core/errors.h"
#include "fulgur/core/registry.h"
#include "fulgur/core/text.h"

namespace fulgur {

void Adam::Options::fields(Fields& f) {
  f(lr, "lr", "Learning rate.").at_least(0);
  f(betas, "betas", "Decay rates of the averages of gradient and squared gradient.").at_least(0).less_than(1);
  f(eps, "eps", "Added to the denominator.").at_least(0);
  f(weight_decay, "weight_decay", "Weight decay.").at_least(0);
  f(amsgrad, "amsgrad", "Use the largest squared average so far (AMSGrad).");
  f(maximize, "maximize", "Raise the objective instead of lowering it.");
  parameters.fields(f);
}

Adam::Adam(Options options) : FusedOptimizer(options.parameters), options_(std::move(options)) {
  if (options_.betas.size() != 2)
    throw ConfigError(cat("[optim.Adam] betas must be two numbers; got ", options_.betas.size(), "."));
}

std::vector<std::string> Adam::state_names(const Tensor&) const {
  std::vector<std::string> names{"exp_avg", "exp_avg_sq"};
  if (options_.amsgrad) names.emplace_back("max_exp_avg_sq");
  return names;
}

void Adam::update(Bucket& b, const std::optional<Tensor>& found_inf) {
  const at::TensorList maximum = options_.amsgrad ? at::TensorList(b.state[2]) : at::TensorList();
  const auto step = [&](const auto& lr) {
    at::_fused_adam_(b.params, b.grads, b.state[0], b.state[1], maximum, b.steps, lr, options_.betas[0], options_.betas[1], *weight_decay(*b.group), options_.eps,
                    options_.amsgrad, options_.maximize, /*grad_scale=*/std::nullopt, found_inf);
  };
  if (b.lr.defined()) step(b.lr);
  else step(b.group->lr);
}

void AdamW::update(Bucket& b, const std::optional<Tensor>& found_inf) {
  const at::TensorList maximum = options_.amsgrad ? at::TensorList(b.state[2]) : at::TensorList();
  const auto step = [&](const auto& lr) {
    at::_fused_adamw_(b.params, b.grads, b.state[0], b.state[1], maximum, b.steps, lr, options_.betas[0], options_.betas[1], *weight_decay(*b.group), options_.eps,
                     options_.amsgrad, options_.maximize, /*grad_scale=*/std::nullopt, found_inf);
  };
  if (b.lr.defined()) step(b.lr);
  else step(b.group->lr);
}

[[maybe_unused]] static const bool registered_adam = Registry<Optimizer>::add<Adam>("Adam", "Adam on ATen's fused kernel (Kingma and Ba 2015).");
[[maybe_unused]] static const bool registered_adamw =
    Registry<Optimizer>::add<AdamW>("AdamW", "AdamW on ATen's fused kernel (Loshchilov and Hutter 2019).");

}  // namespace fulgur
