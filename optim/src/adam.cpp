#include "fulgur/optim/adam.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_neg.h>
#include <ATen/ops/pow.h>

#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fused_adam.h"
#include "momentum_operators.h"

namespace fulgur {

namespace {

// The options of Adam and AdamW differ only in one default.
template <class Options>
void adam_fields(Options& options, Fields& f) {
  f(options.lr, "lr", "Learning rate.").learning_rate().at_least(0);
  f(options.betas, "betas", "Decay rates of the averages of gradient and squared gradient.")
      .at_least(0)
      .less_than(1)
      .items(2);
  f(options.eps, "eps", "Added to the denominator.").at_least(0);
  f(options.weight_decay, "weight_decay", "Weight decay.").at_least(0);
  f(options.amsgrad, "amsgrad",
    "Use the AMSGrad variant, which keeps the maximum of the averages of the squared gradient.");
  f(options.maximize, "maximize", "Maximize the objective instead of minimizing it.");
  options.parameters.fields(f);
}

}  // namespace

void Adam::Options::fields(Fields& f) { adam_fields(*this, f); }
void AdamW::Options::fields(Fields& f) { adam_fields(*this, f); }

namespace {

// AdamW is an Adam: the check must name the class that was asked for.
std::vector<double> two_betas(std::vector<double> betas, std::string_view name) {
  if (betas.size() != 2)
    throw ConfigError(
        cat("[optim.", name, "] betas must be two numbers, such as [0.9, 0.999]; got ", betas.size(), "."));
  return betas;
}

}  // namespace

AdamW::AdamW(Options options)
    : Adam({.lr = options.lr,
            .betas = two_betas(std::move(options.betas), "AdamW"),
            .eps = options.eps,
            .weight_decay = options.weight_decay,
            .amsgrad = options.amsgrad,
            .maximize = options.maximize,
            .parameters = std::move(options.parameters)}) {}

Adam::Adam(Options options) : FusedOptimizer(options.parameters), options_(std::move(options)) {
  two_betas(options_.betas, "Adam");
}

std::vector<std::string> Adam::state_names(const Tensor&) const {
  std::vector<std::string> names{"exp_avg", "exp_avg_sq"};
  if (options_.amsgrad) names.emplace_back("max_exp_avg_sq");
  return names;
}

// The kernel takes the first beta β from the host, and a captured step would keep it. So the kernel gets a constant β₀,
// and the difference is applied before. With c = β/β₀, the average m becomes cm + (1−c)g, which the kernel turns into
// βm + (1−β)g. The rate is adjusted for the different bias correction, with the common count t of the bucket. Decoupled
// decay needs the original rate; the kernel's own decay is then 0.
Adam::Moved Adam::move_beta(Bucket& b, const std::optional<Tensor>& found_inf) const {
  constexpr double kBeta = 0.9;
  const double decay = *weight_decay(*b.group);
  Moved moved{options_.maximize ? at::_foreach_neg(b.grads) : b.grads, {}, kBeta};
  if (decay != 0 && decays_apart()) subtract(b.params, b.params, 0, b.lr * decay, found_inf);
  if (decay != 0 && !decays_apart()) moved.gradients = at::_foreach_add(moved.gradients, b.params, decay);
  const Tensor updates = b.steps.front().to(at::kDouble);
  moved.lr = (b.lr * (1 - at::pow(kBeta, updates)) / (1 - at::pow(b.momentum, updates))).to(at::kFloat);
  subtract(b.state[0], moved.gradients, /*own=*/-1, b.momentum / kBeta - 1, found_inf);
  return moved;
}

void Adam::update(Bucket& b, const std::optional<Tensor>& found_inf) {
  const at::TensorList maximum = options_.amsgrad ? at::TensorList(b.state[2]) : at::TensorList();
  const detail::FusedAdamOptions options{.beta1 = options_.betas[0],
                                         .beta2 = options_.betas[1],
                                         .weight_decay = *weight_decay(*b.group),
                                         .eps = options_.eps,
                                         .amsgrad = options_.amsgrad,
                                         .maximize = options_.maximize,
                                         .decays_apart = decays_apart()};
  const auto step = [&](const std::vector<Tensor>& gradients, const auto& lr, const detail::FusedAdamOptions& o) {
    detail::fused_adam(b.params, gradients, b.state[0], b.state[1], maximum, b.steps, lr, o, found_inf);
  };
  if (b.momentum.defined() && b.momentum.is_cpu()) {
    detail::adam_with_beta(b.params, b.grads, b.state[0], b.state[1], maximum, b.steps, b.lr, b.momentum, options,
                           found_inf);
  } else if (b.momentum.defined()) {
    const Moved moved = move_beta(b, found_inf);
    detail::FusedAdamOptions rest = options;
    rest.beta1 = moved.beta;
    rest.weight_decay = 0;
    rest.maximize = false;
    step(moved.gradients, moved.lr, rest);
  } else {
    b.with_rate([&](const auto& lr) { step(b.grads, lr, options); });
  }
}

[[maybe_unused]] static const bool registered_adam =
    Registry<Optimizer>::add<Adam>("Adam", "Adam on ATen's fused kernel (Kingma and Ba 2015).");
[[maybe_unused]] static const bool registered_adamw =
    Registry<Optimizer>::add<AdamW>("AdamW", "AdamW on ATen's fused kernel (Loshchilov and Hutter 2019).");

}  // namespace fulgur
