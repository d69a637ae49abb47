#include "fulgur/metrics/stat_scores.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>

#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "samples.h"

namespace fulgur::metrics {

namespace {

template <class Options>
void counting_fields(Options& options, Fields& f) {
  classification_fields(options, f);
  f(options.average, "average", "How the values of the classes become one; null: micro for Accuracy, else macro.");
  f(options.threshold, "threshold", "binary and multilabel: larger probabilities count as 1.").range(0, 1);
  f(options.top_k, "top_k", "multiclass: a target among the k largest predictions counts as found.").at_least(1);
}

Tensor no_counts(const StatScoresOptions& options) { return at::zeros({columns_of(common(options))}, at::kLong); }

}  // namespace

void StatScoresOptions::fields(Fields& f) { counting_fields(*this, f); }

void FBeta::Options::fields(Fields& f) {
  counting_fields(*this, f);
  f(beta, "beta", "Weight of the recall; 1: F1.").greater_than(0);
}

StatScores::StatScores(const Options& options, Average average)
    : options_(options),
      average_(options.average.value_or(average)),
      true_positives_(add_state("true_positives", no_counts(options))),
      predicted_(add_state("predicted", no_counts(options))),
      targets_(add_state("targets", no_counts(options))),
      samples_(add_state("samples", no_counts(options))) {
  check_options("a metric that counts predictions", common(options));
  if (options.top_k > 1 && (options.task != Task::multiclass || options.top_k > options.num_classes))
    throw ConfigError(cat("[metrics.options] top_k is for multiclass, and at most num_classes; got top_k ",
                          options.top_k, " for ", enum_text(options.task), " with num_classes ", options.num_classes,
                          ". Lower top_k."));
}

void StatScores::update(const Tensor& prediction, const Tensor& target) {
  const at::NoGradGuard no_grad;
  const bool is_multiclass = options_.task == Task::multiclass;
  Samples batch = samples_of(common(options_), prediction, target, /*as_probabilities=*/!is_multiclass);
  begin_update(batch.target);
  if (!is_multiclass) {
    const Tensor found = batch.scores.defined() ? batch.scores.gt(options_.threshold) : batch.labels.ne(0);
    const Tensor wanted = batch.target.ne(0);
    const auto add = [&](Tensor& to, const Tensor& which) {
      to.add_((batch.valid.defined() ? which.logical_and(batch.valid) : which).sum(0));
    };
    add(true_positives_, found.logical_and(wanted));
    add(predicted_, found);
    add(targets_, wanted);
    add(samples_, at::ones_like(wanted));
    return;
  }
  Tensor labels = batch.labels;
  if (!labels.defined()) {
    labels = batch.scores.argmax(1);
    if (options_.top_k > 1) {
      const Tensor among = std::get<1>(batch.scores.topk(options_.top_k, 1)).eq(batch.target.unsqueeze(1)).any(1);
      labels = batch.target.where(among, labels);
    }
  }
  // Ignored samples, and wrong ones among the right, are counted in one more class.
  const int64_t classes = options_.num_classes;
  Tensor right = labels.eq(batch.target), wanted = batch.target;
  if (batch.valid.defined()) {
    right.logical_and_(batch.valid);
    wanted = wanted.where(batch.valid, classes);
    labels = labels.where(batch.valid, classes);
  }
  const auto add = [&](Tensor& to, const Tensor& index) { to.add_(count(index, classes + 1).narrow(0, 0, classes)); };
  add(true_positives_, batch.target.where(right, classes));
  add(predicted_, labels);
  add(targets_, wanted);
  samples_.add_(batch.valid.defined() ? batch.valid.sum() : at::full({}, labels.numel(), labels.options()));
}

Tensor StatScores::compute() const {
  const at::NoGradGuard no_grad;
  const int64_t ignored = options_.ignore_index.value_or(-1);
  const bool leaves_out =
      leaves_out_ignored_ && options_.task == Task::multiclass && ignored >= 0 && ignored < options_.num_classes;
  const auto number = [&](const Tensor& counted) {
    const Tensor value = counted.to(at::kDouble);
    if (leaves_out && average_ == Average::micro && value.dim() == 1) value.select(0, ignored).zero_();
    return average_ == Average::micro ? value.sum() : value;
  };
  Counts counts;
  counts.true_positives = number(true_positives_);
  counts.false_positives = number(predicted_) - counts.true_positives;
  counts.false_negatives = number(targets_) - counts.true_positives;
  counts.true_negatives = number(samples_) - counts.true_positives - counts.false_positives - counts.false_negatives;
  const Tensor scores = score(counts);
  if (options_.task == Task::binary) return scores.reshape({});
  if (average_ == Average::micro || average_ == Average::none) return scores;
  const Tensor targets = counts.true_positives + counts.false_negatives;
  Tensor weights = targets;
  if (average_ == Average::macro) {
    weights = at::ones_like(scores);
    const Tensor seen = options_.top_k == 1 ? targets + counts.false_positives : targets;
    if (options_.task == Task::multiclass) weights.masked_fill_(seen.eq(0), 0);
    if (leaves_out) weights.select(0, ignored).zero_();
  }
  return safe_divide(weights, weights.sum()).mul_(scores).sum();
}

Tensor Accuracy::score(const Counts& counts) const {
  if (task() == Task::multiclass)
    return safe_divide(counts.true_positives, counts.true_positives + counts.false_negatives);
  const Tensor right = counts.true_positives + counts.true_negatives;
  return safe_divide(right, right + counts.false_positives + counts.false_negatives);
}

Tensor Precision::score(const Counts& counts) const {
  return safe_divide(counts.true_positives, counts.true_positives + counts.false_positives);
}

Tensor Recall::score(const Counts& counts) const {
  return safe_divide(counts.true_positives, counts.true_positives + counts.false_negatives);
}

Tensor Specificity::score(const Counts& counts) const {
  return safe_divide(counts.true_negatives, counts.true_negatives + counts.false_positives);
}

FBeta::FBeta(const Options& options)
    : StatScores({.task = options.task,
                  .num_classes = options.num_classes,
                  .average = options.average,
                  .threshold = options.threshold,
                  .top_k = options.top_k,
                  .ignore_index = options.ignore_index}),
      beta_(options.beta) {}

Tensor FBeta::score(const Counts& counts) const {
  const double square = beta_ * beta_;
  const Tensor right = counts.true_positives * (1 + square);
  return safe_divide(right, right + counts.false_negatives * square + counts.false_positives);
}

Tensor IoU::score(const Counts& counts) const {
  return safe_divide(counts.true_positives, counts.true_positives + counts.false_positives + counts.false_negatives);
}

Tensor Dice::score(const Counts& counts) const {
  const Tensor right = counts.true_positives * 2;
  return safe_divide(right, right + counts.false_positives + counts.false_negatives);
}

[[maybe_unused]] static const bool registered_stat_scores_metrics[] = {
    Registry<PredictionMetric>::add<Accuracy>("Accuracy", "Share of right predictions."),
    Registry<PredictionMetric>::add<Precision>("Precision", "Share of the predictions of a class that are right."),
    Registry<PredictionMetric>::add<Recall>("Recall", "Share of the targets of a class that are found."),
    Registry<PredictionMetric>::add<Specificity>(
        "Specificity", "Share of the samples of other classes that are not taken for this one."),
    Registry<PredictionMetric>::add<FBeta>(
        "FBeta", "Weighted harmonic mean of precision and recall: the F1 score, unless beta is set."),
    Registry<PredictionMetric>::add<IoU>("IoU", "Intersection over union (Jaccard index)."),
    Registry<PredictionMetric>::add<Dice>("Dice", "The Dice coefficient over all samples."),
};

}  // namespace fulgur::metrics
