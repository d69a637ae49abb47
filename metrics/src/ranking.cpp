#include "fulgur/metrics/ranking.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "samples.h"

namespace fulgur::metrics {

void RankingOptions::fields(Fields& f) {
  classification_fields(*this, f);
  f(average, "average", "How the values of the classes become one.");
  f(thresholds, "thresholds", "So many thresholds from 0 to 1; null: exact, which keeps all predictions.").at_least(2);
}

RankingMetric::RankingMetric(const char* name, const Options& options) : options_(options) {
  check_options(name, common(options));
  if (options.average == Average::micro && options.task == Task::multiclass)
    throw ConfigError(cat("[metrics.options] ", name, " has no micro average for multiclass; use macro or weighted."));
  if (options.thresholds) {
    bins_ = &add_state("bins", at::zeros({2, columns_of(common(options)), *options.thresholds + 1}, at::kLong));
    edges_ = at::linspace(0, 1, *options.thresholds, at::kFloat);
  } else {
    scores_ = &add_list("scores");
    targets_ = &add_list("targets");
  }
}

void RankingMetric::update(const Tensor& prediction, const Tensor& target) {
  const at::NoGradGuard no_grad;
  const Samples batch = samples_of(common(options_), prediction, target, /*as_probabilities=*/true);
  if (!batch.scores.defined())
    throw Error(
        cat("[metrics.update] this metric needs probabilities or logits; got integers. Pass the outputs of the "
            "model, not classes."));
  begin_update(batch.scores);
  const int64_t columns = columns_of(common(options_));
  const bool is_multiclass = options_.task == Task::multiclass;
  Tensor wanted = is_multiclass
                      ? batch.target.unsqueeze(1).eq(at::arange(columns, batch.target.options())).to(at::kLong)
                      : batch.target.ne(0).to(at::kLong);
  Tensor valid = batch.valid;
  if (valid.defined() && is_multiclass) valid = valid.unsqueeze(1).expand_as(wanted);
  if (!bins_) {
    scores_->push_back(batch.scores.clone());
    targets_->push_back(valid.defined() ? wanted.where(valid, -1) : wanted);
    return;
  }
  if (edges_.device() != batch.scores.device()) edges_ = edges_.to(batch.scores.device());
  // The number of thresholds that the score reaches.
  const Tensor bin = at::bucketize(batch.scores.to(at::kFloat), edges_, /*out_int32=*/false, /*right=*/true);
  const int64_t cells = bins_->numel(), width = bins_->size(2);
  Tensor cell = wanted * (columns * width) + at::arange(columns, bin.options()) * width + bin;
  if (valid.defined()) cell = cell.where(valid, cells);
  bins_->add_(count(cell, cells + 1).narrow(0, 0, cells).view(bins_->sizes()));
}

RankingMetric::Curve RankingMetric::binned() const {
  Tensor bins = bins_->to(at::kDouble);
  if (options_.average == Average::micro) bins = bins.sum(1, /*keepdim=*/true);
  // From the highest threshold down, what reaches it; the last bin reaches none.
  const Tensor reached = bins.flip(2).cumsum(2);
  const Tensor at_thresholds = reached.narrow(2, 0, reached.size(2) - 1).transpose(1, 2);
  const Tensor all = reached.select(2, reached.size(2) - 1);
  return {at_thresholds[1], at_thresholds[0], all[1], all[0]};
}

Tensor RankingMetric::exact() const {
  if (scores_->empty())
    return at::full({options_.average == Average::micro ? 1 : columns_of(common(options_))},
                    std::numeric_limits<double>::quiet_NaN(), at::kDouble);
  Tensor scores = at::cat(*scores_), targets = at::cat(*targets_).to(scores.device());
  if (options_.average == Average::micro) {
    scores = scores.reshape({-1, 1});
    targets = targets.reshape({-1, 1});
  }
  std::vector<Tensor> areas;
  for (int64_t column = 0; column < scores.size(1); ++column) {
    const Tensor kept = targets.select(1, column).ge(0);
    const Tensor own = scores.select(1, column).masked_select(kept);
    const auto [sorted, order] = own.sort(/*stable=*/true, 0, /*descending=*/true);
    const Tensor wanted = targets.select(1, column).masked_select(kept).index_select(0, order).to(at::kDouble);
    const Tensor found = wanted.cumsum(0), taken = at::arange(1, wanted.numel() + 1, wanted.options());
    // Equal scores are one threshold.
    const Tensor differs = at::cat({sorted.slice(0, 1).ne(sorted.slice(0, 0, -1)), at::ones({1}, kept.options())});
    const Tensor ends = sorted.numel() > 0 ? differs.nonzero().squeeze(1) : at::zeros({0}, order.options());
    const Tensor true_positives = found.index_select(0, ends).unsqueeze(1);
    const Tensor false_positives = taken.index_select(0, ends).unsqueeze(1) - true_positives;
    const Tensor positives = wanted.sum().unsqueeze(0);
    areas.push_back(area({true_positives, false_positives, positives, wanted.numel() - positives}).squeeze(0));
  }
  return at::stack(areas);
}

Tensor RankingMetric::compute() const {
  const at::NoGradGuard no_grad;
  const Tensor areas = bins_ ? area(binned()) : exact();
  if (options_.task == Task::binary || options_.average == Average::micro) return areas.reshape({});
  if (options_.average == Average::none) return areas;
  const Tensor has_value = at::isnan(areas).logical_not();
  Tensor weights = has_value.to(at::kDouble);
  if (options_.average == Average::weighted) {
    Tensor positives;
    if (bins_) {
      positives = (*bins_)[1].sum(1);
    } else {
      positives = at::zeros({areas.size(0)}, areas.options().dtype(at::kLong));
      for (const Tensor& part : *targets_) positives = positives + part.eq(1).sum(0).to(positives.device());
    }
    weights = weights * positives;
  }
  // NaN if no class has a value.
  return areas.where(has_value, 0).mul(weights).sum() / weights.sum();
}

Tensor Auroc::area(const Curve& curve) const {
  // From the point (0, 0) on.
  const auto rate = [](const Tensor& found, const Tensor& of) {
    return at::cat({at::zeros({1, found.size(1)}, found.options()), found / of});
  };
  const Tensor recall = rate(curve.true_positives, curve.positives);
  const Tensor fallout = rate(curve.false_positives, curve.negatives);
  const Tensor widths = fallout.slice(0, 1) - fallout.slice(0, 0, -1);
  const Tensor heights = (recall.slice(0, 1) + recall.slice(0, 0, -1)) / 2;
  return (widths * heights).sum(0);
}

Tensor AveragePrecision::area(const Curve& curve) const {
  const Tensor precision = safe_divide(curve.true_positives, curve.true_positives + curve.false_positives);
  const Tensor recall = curve.true_positives / curve.positives;
  const Tensor before = at::cat({at::zeros({1, recall.size(1)}, recall.options()), recall.slice(0, 0, -1)});
  return ((recall - before) * precision).sum(0);
}

void CalibrationError::Options::fields(Fields& f) {
  classification_fields(*this, f);
  f(num_bins, "num_bins", "Bins of equal width.").at_least(1);
  f(norm, "norm", "l1: the mean difference; l2: the root of the mean square; max: the largest.")
      .one_of({"l1", "l2", "max"});
}

CalibrationError::CalibrationError(const Options& options)
    : options_(options),
      samples_(add_state("samples", at::zeros({options.num_bins + 1}, at::kLong))),
      confidence_(add_state("confidence", at::zeros({options.num_bins + 1}, at::kDouble))),
      right_(add_state("right", at::zeros({options.num_bins + 1}, at::kLong))) {
  check_options("CalibrationError", common(options));
  if (options.task == Task::multilabel)
    throw ConfigError("[metrics.options] CalibrationError is for binary and multiclass; got multilabel.");
}

void CalibrationError::update(const Tensor& prediction, const Tensor& target) {
  const at::NoGradGuard no_grad;
  const Samples batch = samples_of(common(options_), prediction, target, /*as_probabilities=*/true);
  if (!batch.scores.defined())
    throw Error("[metrics.update] CalibrationError needs probabilities or logits; got integers.");
  begin_update(batch.scores);
  Tensor confidence, right;
  if (options_.task == Task::binary) {
    confidence = batch.scores;
    right = batch.target.ne(0);
  } else {
    const auto [most, label] = batch.scores.max(1);
    confidence = most;
    right = label.eq(batch.target);
  }
  confidence = confidence.reshape({-1}).to(at::kFloat);
  right = right.reshape({-1}).to(at::kLong);
  // Bins are [k/n, (k+1)/n), and 1 has its own, as in torchmetrics.
  const int64_t bins = options_.num_bins + 1;
  const Tensor edges = at::linspace(0, 1, bins, confidence.options());
  Tensor bin = at::bucketize(confidence, edges, /*out_int32=*/false, /*right=*/true).sub_(1);
  if (batch.valid.defined()) bin = bin.where(batch.valid.reshape({-1}), bins);
  const auto sums = [&](const Tensor& values) {
    return at::zeros({bins + 1}, values.options()).scatter_add_(0, bin, values).narrow(0, 0, bins);
  };
  samples_.add_(count(bin, bins + 1).narrow(0, 0, bins));
  confidence_.add_(sums(confidence.to(at::kDouble)));
  right_.add_(sums(right));
}

Tensor CalibrationError::compute() const {
  const at::NoGradGuard no_grad;
  const Tensor samples = samples_.to(at::kDouble);
  const Tensor difference = safe_divide(confidence_ - right_, samples).abs();
  if (options_.norm == "max") return difference.max();
  const Tensor share = samples / samples.sum();
  return options_.norm == "l1" ? (difference * share).sum() : (difference.square() * share).sum().sqrt();
}

[[maybe_unused]] static const bool registered_ranking_metrics[] = {
    Registry<PredictionMetric>::add<Auroc>("Auroc", "Area under the ROC curve."),
    Registry<PredictionMetric>::add<AveragePrecision>("AveragePrecision",
                                                      "Area under the curve of precision over recall."),
    Registry<PredictionMetric>::add<CalibrationError>(
        "CalibrationError", "Difference between confidence and the share of right predictions."),
};

}  // namespace fulgur::metrics
