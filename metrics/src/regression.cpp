#include "fulgur/metrics/regression.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <limits>
#include <utility>

#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "samples.h"

namespace fulgur::metrics {

namespace {

// Both as float64, in which sums over an epoch stay exact.
std::pair<Tensor, Tensor> pair_of(const Tensor& prediction, const Tensor& target) {
  if (prediction.sizes() != target.sizes())
    throw Error(cat("[metrics.update] predictions and targets must have the same shape; got ",
                    shape_text(prediction.sizes()), " and ", shape_text(target.sizes()), "."));
  return {prediction.detach().to(at::kDouble), target.detach().to(prediction.device(), at::kDouble)};
}

Tensor no_sum() { return at::zeros({}, at::kDouble); }

// NaN without values.
Tensor mean_of(const Tensor& sum, const Tensor& count) { return sum / count; }

}  // namespace

void MeanSquaredError::Options::fields(Fields& f) { f(squared, "squared", "false: the root of the mean (RMSE)."); }

MeanSquaredError::MeanSquaredError() : MeanSquaredError(Options()) {}

MeanSquaredError::MeanSquaredError(const Options& options)
    : squared_(options.squared),
      sum_(add_state("sum", no_sum())),
      count_(add_state("count", at::zeros({}, at::kLong))) {}

void MeanSquaredError::update(const Tensor& prediction, const Tensor& target) {
  const at::NoGradGuard no_grad;
  const auto [x, y] = pair_of(prediction, target);
  begin_update(x);
  sum_.add_((x - y).square().sum());
  count_.add_(x.numel());
}

Tensor MeanSquaredError::compute() const {
  const Tensor mean = mean_of(sum_, count_);
  return squared_ ? mean : mean.sqrt();
}

MeanAbsoluteError::MeanAbsoluteError()
    : sum_(add_state("sum", no_sum())), count_(add_state("count", at::zeros({}, at::kLong))) {}

void MeanAbsoluteError::update(const Tensor& prediction, const Tensor& target) {
  const at::NoGradGuard no_grad;
  const auto [x, y] = pair_of(prediction, target);
  begin_update(x);
  sum_.add_((x - y).abs().sum());
  count_.add_(x.numel());
}

Tensor MeanAbsoluteError::compute() const { return mean_of(sum_, count_); }

PairMoments::PairMoments()
    : count_(add_state("count", no_sum())),
      means_(add_state("means", at::zeros({2}, at::kDouble))),
      squares_(add_state("squares", at::zeros({2}, at::kDouble))),
      product_(add_state("product", no_sum())) {}

void PairMoments::update(const Tensor& prediction, const Tensor& target) {
  const at::NoGradGuard no_grad;
  const auto [x, y] = pair_of(prediction, target);
  begin_update(x);
  if (x.numel() == 0) return;
  const Tensor pairs = at::stack({x.reshape({-1}), y.reshape({-1})});
  const Tensor means = pairs.mean(1);
  const Tensor deviations = pairs - means.unsqueeze(1);
  merge(at::full({}, static_cast<double>(x.numel()), means.options()), means, deviations.square().sum(1),
        (deviations[0] * deviations[1]).sum());
}

void PairMoments::merge(const Tensor& count, const Tensor& means, const Tensor& squares, const Tensor& product) {
  const Tensor all = count_ + count, difference = means - means_;
  const Tensor share = safe_divide(count, all), both = count_ * share;
  squares_.add_(squares + difference.square() * both);
  product_.add_(product + difference[0] * difference[1] * both);
  means_.add_(difference * share);
  count_.copy_(all);
}

void PairMoments::merge_state(const StateTree& other) {
  check_state(other);
  const at::NoGradGuard no_grad;
  const auto theirs = [&](const char* name) { return other.at("values").at(name).tensor().to(count_.device()); };
  merge(theirs("count"), theirs("means"), theirs("squares"), theirs("product"));
  set_updates(updates() + other.at("updates").as_int());
}

Tensor R2Score::compute() const {
  // The squared errors, from the moments of predictions and targets.
  const Tensor errors = squares_[0] + squares_[1] - product_ * 2 + (means_[0] - means_[1]).square() * count_;
  return (errors / squares_[1]).neg_().add_(1);
}

Tensor PearsonCorrCoef::compute() const { return product_ / (squares_[0] * squares_[1]).sqrt(); }

SpearmanCorrCoef::SpearmanCorrCoef() : predictions_(add_list("predictions")), targets_(add_list("targets")) {}

void SpearmanCorrCoef::update(const Tensor& prediction, const Tensor& target) {
  const at::NoGradGuard no_grad;
  const auto [x, y] = pair_of(prediction, target);
  begin_update(x);
  predictions_.push_back(x.reshape({-1}).clone());
  targets_.push_back(y.reshape({-1}).clone());
}

namespace {

// From 1 on; equal values have their mean rank.
Tensor ranks_of(const Tensor& values) {
  const auto [sorted, order] = values.sort(0);
  const Tensor begins =
      at::cat({at::ones({1}, order.options()), sorted.slice(0, 1).ne(sorted.slice(0, 0, -1)).to(at::kLong)});
  const Tensor group = begins.cumsum(0) - 1;
  const Tensor places = at::arange(1, values.numel() + 1, values.options());
  const Tensor sums = at::zeros_like(values).scatter_add_(0, group, places);
  const Tensor sizes = at::zeros_like(values).scatter_add_(0, group, at::ones_like(values));
  Tensor ranks = at::empty_like(values);
  return ranks.index_copy_(0, order, (sums / sizes).index_select(0, group));
}

}  // namespace

Tensor SpearmanCorrCoef::compute() const {
  const at::NoGradGuard no_grad;
  if (predictions_.empty()) return at::full({}, std::numeric_limits<double>::quiet_NaN(), at::kDouble);
  const Tensor x = ranks_of(at::cat(predictions_)), y = ranks_of(at::cat(targets_).to(predictions_.front().device()));
  const Tensor dx = x - x.mean(), dy = y - y.mean();
  return (dx * dy).sum() / (dx.square().sum() * dy.square().sum()).sqrt();
}

void CosineSimilarity::Options::fields(Fields& f) {
  f(reduction, "reduction", "Over the rows.").one_of({"mean", "sum"});
}

CosineSimilarity::CosineSimilarity() : CosineSimilarity(Options()) {}

CosineSimilarity::CosineSimilarity(const Options& options)
    : mean_(options.reduction == "mean"),
      sum_(add_state("sum", no_sum())),
      count_(add_state("count", at::zeros({}, at::kLong))) {}

void CosineSimilarity::update(const Tensor& prediction, const Tensor& target) {
  const at::NoGradGuard no_grad;
  const auto [x, y] = pair_of(prediction, target);
  if (x.dim() != 2)
    throw Error(cat("[metrics.update] CosineSimilarity needs the shape (N, D); got ", shape_text(x.sizes()), "."));
  begin_update(x);
  sum_.add_(safe_divide((x * y).sum(1), (x.square().sum(1) * y.square().sum(1)).sqrt()).sum());
  count_.add_(x.size(0));
}

Tensor CosineSimilarity::compute() const { return mean_ ? mean_of(sum_, count_) : sum_.clone(); }

[[maybe_unused]] static const bool registered_regression_metrics[] = {
    Registry<PredictionMetric>::add<MeanSquaredError>("MeanSquaredError", "Mean of squared differences, or its root."),
    Registry<PredictionMetric>::add<MeanAbsoluteError>("MeanAbsoluteError", "Mean of absolute differences."),
    Registry<PredictionMetric>::add<R2Score>("R2Score", "Share of the targets' variance that predictions explain."),
    Registry<PredictionMetric>::add<PearsonCorrCoef>("PearsonCorrCoef", "Pearson's correlation coefficient."),
    Registry<PredictionMetric>::add<SpearmanCorrCoef>("SpearmanCorrCoef", "Spearman's rank correlation."),
    Registry<PredictionMetric>::add<CosineSimilarity>("CosineSimilarity", "Cosine between predictions and targets."),
};

}  // namespace fulgur::metrics
