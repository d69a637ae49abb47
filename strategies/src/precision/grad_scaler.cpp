#include "fulgur/strategies/grad_scaler.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "fulgur/core/state/clip.h"
#include "fulgur/core/state/late_number.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {

void GradScaler::Options::fields(Fields& f) {
  f(init_scale, "init_scale", "Initial loss scale.").greater_than(0);
  f(growth_factor, "growth_factor",
    "Factor by which the scale grows after growth_interval steps in a row without an overflow.")
      .greater_than(1);
  f(backoff_factor, "backoff_factor", "Factor by which the scale falls when the gradients of a step overflow.")
      .greater_than(0)
      .less_than(1);
  f(growth_interval, "growth_interval", "Steps in a row without an overflow after which the scale grows.").at_least(1);
}

GradScaler::GradScaler(Options options) : options_(options) { set_device(at::kCPU); }

void GradScaler::set_device(at::Device device) {
  if (scale_.defined() && scale_.device() == device) return;
  const auto kind = at::TensorOptions().device(device);
  scale_ = scale_.defined() ? scale_.to(device) : at::full({}, options_.init_scale, kind.dtype(at::kFloat));
  growth_tracker_ = growth_tracker_.defined() ? growth_tracker_.to(device) : at::zeros({}, kind.dtype(at::kInt));
  found_.clear();
}

Tensor GradScaler::scale(const Tensor& loss) const {
  return (at::isReducedFloatingType(loss.scalar_type()) ? loss.to(at::kFloat) : loss) *
         (loss.device() == scale_.device() ? scale_ : scale_.to(loss.device()));
}

void GradScaler::unscale(const Optimizer& optimizer, const std::vector<Tensor>& gradients) {
  at::NoGradGuard no_grad;
  Found& found = found_[&optimizer];
  if (found.current) return;
  found.current = true;
  if (found.inf.defined())
    found.inf.zero_();
  else
    found.inf = at::zeros({}, scale_.options());
  // Like Python: the reciprocal of a float32 scale in float64, rounded once; in one kernel.
  Tensor inverse = at::empty_like(scale_);
  at::div_out(inverse, at::scalar_tensor(1.0, at::kDouble), scale_);
  for (const auto& group : by_device_and_dtype(gradients)) {
    const at::ScalarType dtype = group.front().scalar_type();
    if (at::isReducedFloatingType(dtype))
      throw ConfigError(cat("[strategies.grad_scaler] a scaled loss needs float32 gradients; got ",
                            c10::toString(dtype), ". Set master_weights: true, or loss_scaling: false."));
    const at::Device device = group.front().device();
    if (device == scale_.device()) {
      at::_amp_foreach_non_finite_check_and_unscale_(group, found.inf, inverse);
      continue;
    }
    Tensor there = at::zeros({}, scale_.options().device(device));
    at::_amp_foreach_non_finite_check_and_unscale_(group, there, inverse.to(device));
    found.inf.copy_(at::maximum(found.inf, there.to(scale_.device())));
  }
  // Kernels of optimizers compare it with 1.
  if (optimizer.gradients_are_shards()) found.inf.copy_(optimizer.sum_over_shards(found.inf).clamp_max_(1));
}

std::optional<Tensor> GradScaler::found_inf(const Optimizer& optimizer) const {
  const auto found = found_.find(&optimizer);
  if (found == found_.end() || !found->second.current) return std::nullopt;
  return found->second.inf;
}

void GradScaler::update() {
  at::NoGradGuard no_grad;
  Tensor any;
  for (auto& [optimizer, found] : found_) {
    if (!found.current) continue;
    any = any.defined() ? at::maximum(any, found.inf) : found.inf;
    found.current = false;
  }
  if (any.defined())
    at::_amp_update_scale_(scale_, growth_tracker_, any, options_.growth_factor, options_.backoff_factor,
                           options_.growth_interval);
}

void GradScaler::abandon_step() {
  for (auto& [optimizer, found] : found_) found.current = false;
}

StateTree GradScaler::state() const {
  return StateTree::map({{"scale", late_number(scale_)},
                         {"growth_factor", options_.growth_factor},
                         {"backoff_factor", options_.backoff_factor},
                         {"growth_interval", options_.growth_interval},
                         {"_growth_tracker", late_number(growth_tracker_)}});
}

void GradScaler::load_state(const StateTree& state) {
  const double scale = state.at("scale").as_double();
  const int64_t tracker = state.at("_growth_tracker").as_int();
  if (!(scale > 0) || !std::isfinite(scale) || tracker < 0)
    throw CheckpointError(cat("[strategies.grad_scaler] a loss scale must be a positive number; the checkpoint has ",
                              scale, " after ", tracker, " good steps."));
  scale_.fill_(scale);
  growth_tracker_.fill_(tracker);
}

}  // namespace fulgur
