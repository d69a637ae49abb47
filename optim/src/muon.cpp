#include "fulgur/optim/muon.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <cmath>

#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {

void Muon::AdamwOptions::fields(Fields& f) {
  f(lr, "lr", "Learning rate.").learning_rate().greater_than(0);
  f(betas, "betas", "Decay rates of the averages of gradient and squared gradient.").at_least(0).less_than(1).items(2);
  f(eps, "eps", "Added to the denominator.").at_least(0);
  f(weight_decay, "weight_decay", "Weight decay.").at_least(0);
}

void Muon::Options::fields(Fields& f) {
  f(lr, "lr", "Learning rate of the matrices.").learning_rate().at_least(0);
  f(weight_decay, "weight_decay", "Weight decay of the matrices, decoupled from the gradient.").at_least(0);
  f(momentum, "momentum", "Momentum factor.").at_least(0).less_than(1);
  f(nesterov, "nesterov", "Use Nesterov momentum.");
  f(ns_coefficients, "ns_coefficients", "Coefficients a, b, c of a Newton-Schulz step.");
  f(eps, "eps", "Lower bound of the norm that an update is divided by.").at_least(0);
  f(ns_steps, "ns_steps", "Number of Newton-Schulz steps.").range(0, 99);
  f(adjust_lr_fn, "adjust_lr_fn",
    "How the rate depends on a matrix's shape; with match_rms_adamw a rate tuned for AdamW can be used.");
  f(adamw_parameters, "adamw_parameters", "Patterns of the matrices that AdamW steps: embeddings, the output layer.");
  f(adamw, "adamw", "Options of AdamW, for all parameters that are not matrices or that adamw_parameters names.");
  parameters.fields(f);
}

Muon::Muon(Options options) : FusedOptimizer(options.parameters), options_(std::move(options)) {
  if (options_.ns_coefficients.size() != 3)
    throw ConfigError(
        cat("[optim.Muon] ns_coefficients must be three numbers; got ", options_.ns_coefficients.size(), "."));
  if (options_.adamw.betas.size() != 2)
    throw ConfigError(cat("[optim.Muon] adamw.betas must be two numbers; got ", options_.adamw.betas.size(), "."));
}

std::vector<ParamGroup> Muon::arrange(std::vector<ParamGroup> groups) {
  matrices_.clear();
  std::vector<ParamGroup> out;
  std::vector<std::string> names;
  std::vector<bool> matched(options_.adamw_parameters.size());
  for (const ParamGroup& group : FusedOptimizer::arrange(groups)) {
    if (group.names.size() != group.params.size()) return groups;  // attach reports it
    ParamGroup matrices = group, others = group;
    matrices.params.clear(), matrices.names.clear(), others.params.clear(), others.names.clear();
    others.name += others.name.empty() ? "adamw" : "_adamw";
    if (others.lr == 0) others.lr = options_.adamw.lr;
    for (size_t i = 0; i < group.params.size(); ++i) {
      names.push_back(group.names[i]);
      bool matrix = group.params[i].dim() == 2;
      for (size_t p = 0; p < matched.size(); ++p)
        if (matches_pattern(options_.adamw_parameters[p], group.names[i])) {
          matched[p] = true;
          matrix = false;
        }
      if (matrix) matrices_.insert(group.params[i].unsafeGetTensorImpl());
      (matrix ? matrices : others).params.push_back(group.params[i]);
      (matrix ? matrices : others).names.push_back(group.names[i]);
    }
    for (ParamGroup* part : {&matrices, &others})
      if (!part->params.empty()) out.push_back(std::move(*part));
  }
  for (size_t p = 0; p < matched.size(); ++p)
    if (!matched[p]) throw_no_match("Muon.adamw_parameters", options_.adamw_parameters[p], names);
  return out;
}

std::vector<std::string> Muon::state_names(const Tensor& parameter) const {
  if (is_matrix(parameter)) return {"momentum_buffer"};
  return {"exp_avg", "exp_avg_sq"};
}

std::optional<double> Muon::weight_decay(const ParamGroup& group) const {
  const bool matrices = !group.params.empty() && is_matrix(group.params[0]);
  return group.weight_decay.value_or(matrices ? options_.weight_decay : options_.adamw.weight_decay);
}

bool Muon::counts_steps(const Tensor& parameter) const { return !is_matrix(parameter); }

Tensor Muon::orthogonalized(const Tensor& update) const {
  const auto& c = options_.ns_coefficients;
  const bool tall = update.size(0) > update.size(1);
  Tensor x = update.to(at::kBFloat16);
  if (tall) x = x.t();
  x = x.div(x.norm().clamp_min(options_.eps));
  for (int64_t i = 0; i < options_.ns_steps; ++i) {
    const Tensor gram = at::mm(x, x.t());
    x = at::addmm(x, at::addmm(gram, gram, gram, c[1], c[2]), x, c[0]);
  }
  return tall ? x.t() : x;
}

void Muon::update(Bucket& b, const std::optional<Tensor>& found_inf) {
  const double lr = b.group->lr, decay = *weight_decay(*b.group);
  if (!is_matrix(b.params[0])) {
    const AdamwOptions& o = options_.adamw;
    const auto step = [&](const auto& rate) {
      at::_fused_adamw_(b.params, b.grads, b.state[0], b.state[1], {}, b.steps, rate, o.betas[0], o.betas[1], decay,
                        o.eps, /*amsgrad=*/false, /*maximize=*/false, /*grad_scale=*/std::nullopt, found_inf);
    };
    return b.with_rate(step);
  }
  for (size_t i = 0; i < b.params.size(); ++i) {
    const Tensor& velocity = b.state[0][i].lerp_(b.grads[i], 1 - options_.momentum);
    const Tensor direction =
        orthogonalized(options_.nesterov ? at::lerp(b.grads[i], velocity, options_.momentum) : velocity);
    const auto rows = static_cast<double>(b.params[i].size(0)), columns = static_cast<double>(b.params[i].size(1));
    const double by_shape = options_.adjust_lr_fn == AdjustLr::original ? std::sqrt(std::max(1.0, rows / columns))
                                                                        : 0.2 * std::sqrt(std::max(rows, columns));
    if (b.lr.defined()) {
      b.params[i].mul_(1 - b.lr * decay);
      if (b.lr.is_cpu()) {
        // With the bits of a rate on the host, in the memory order that the kernel needs.
        const Tensor step = at::empty_like(b.params[i]).copy_(direction);
        subtract(b.params[i], step, 0, b.lr * by_shape, std::nullopt);
      } else {
        b.params[i].sub_(direction.to(b.params[i].scalar_type()) * (b.lr * by_shape));
      }
    } else {
      b.params[i].mul_(1 - lr * decay);
      b.params[i].add_(direction, -lr * by_shape);
    }
  }
}

[[maybe_unused]] static const bool registered_muon = Registry<Optimizer>::add<Muon>(
    "Muon", "Orthogonalized momentum for matrices, AdamW for all other parameters (Jordan et al. 2024).");

}  // namespace fulgur
