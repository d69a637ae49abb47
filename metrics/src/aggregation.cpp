#include "fulgur/metrics/aggregation.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace fulgur::metrics {

namespace {

Tensor zero() { return at::zeros({}, at::kDouble); }
Tensor number(double value) { return at::scalar_tensor(value, at::kDouble); }
Tensor plain(const Tensor& value) { return value.detach().to(at::kDouble); }

}  // namespace

void Aggregation::update(double value, double weight) { update(number(value), weight); }

Mean::Mean() : sum_(add_state("sum", zero())), weight_(add_state("weight", zero())) {}

void Mean::update(const Tensor& value, double weight) {
  const at::NoGradGuard no_grad;
  begin_update(value);
  sum_.add_(plain(value).sum(), weight);
  weight_.add_(weight * static_cast<double>(value.numel()));
}

Tensor Mean::compute() const { return sum_ / weight_; }

Sum::Sum() : sum_(add_state("sum", zero())) {}

void Sum::update(const Tensor& value, double) {
  const at::NoGradGuard no_grad;
  begin_update(value);
  sum_.add_(plain(value).sum());
}

Tensor Sum::compute() const { return sum_.clone(); }

Min::Min() : least_(add_state("least", number(std::numeric_limits<double>::infinity()), Merge::min)) {}

void Min::update(const Tensor& value, double) {
  const at::NoGradGuard no_grad;
  begin_update(value);
  if (value.numel() > 0) at::minimum_out(least_, least_, plain(value).min());
}

Tensor Min::compute() const { return least_.clone(); }

Max::Max() : most_(add_state("most", number(-std::numeric_limits<double>::infinity()), Merge::max)) {}

void Max::update(const Tensor& value, double) {
  const at::NoGradGuard no_grad;
  begin_update(value);
  if (value.numel() > 0) at::maximum_out(most_, most_, plain(value).max());
}

Tensor Max::compute() const { return most_.clone(); }

void RunningMean::Options::fields(Fields& f) { f(window, "window", "The number of updates.").at_least(1); }

RunningMean::RunningMean() : RunningMean(Options()) {}

RunningMean::RunningMean(const Options& options) : window_(options.window), values_(add_list("values")) {}

void RunningMean::update(const Tensor& value, double) {
  const at::NoGradGuard no_grad;
  begin_update(value);
  // A state that was loaded or merged is one tensor.
  if (std::any_of(values_.begin(), values_.end(), [](const Tensor& part) { return part.numel() > 1; }))
    values_ = at::cat(values_).split(1);
  values_.push_back(plain(value).mean().reshape({1}));
  while (static_cast<int64_t>(values_.size()) > window_) values_.erase(values_.begin());
}

Tensor RunningMean::compute() const {
  if (values_.empty()) return number(std::numeric_limits<double>::quiet_NaN());
  return at::cat(values_).mean();
}

void Ema::Options::fields(Fields& f) {
  f(half_life, "half_life", "Updates after which a value counts half.").greater_than(0);
}

Ema::Ema() : Ema(Options()) {}

Ema::Ema(const Options& options)
    : decay_(std::exp2(-1 / options.half_life)), sum_(add_state("sum", zero())), weight_(add_state("weight", zero())) {}

void Ema::update(const Tensor& value, double) {
  const at::NoGradGuard no_grad;
  begin_update(value);
  sum_.mul_(decay_).add_(plain(value).mean());
  weight_.mul_(decay_).add_(1);
}

Tensor Ema::compute() const { return sum_ / weight_; }

}  // namespace fulgur::metrics
