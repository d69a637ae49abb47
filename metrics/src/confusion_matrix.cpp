#include "fulgur/metrics/confusion_matrix.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include "fulgur/core/contracts/registry.h"
#include "samples.h"

namespace fulgur::metrics {

namespace {

Tensor empty_counts(const Classification& options) {
  switch (options.task) {
    case Task::binary:
      return at::zeros({2, 2}, at::kLong);
    case Task::multiclass:
      return at::zeros({options.num_classes, options.num_classes}, at::kLong);
    default:
      return at::zeros({options.num_classes, 2, 2}, at::kLong);
  }
}

}  // namespace

void ConfusionMatrix::Options::fields(Fields& f) {
  classification_fields(*this, f);
  f(threshold, "threshold", "binary and multilabel: larger probabilities count as 1.").range(0, 1);
  f(normalize, "normalize", "Shares instead of counts: over each row (true), column (pred), or all.")
      .one_of({"none", "true", "pred", "all"});
}

ConfusionMatrix::ConfusionMatrix(const Options& options)
    : options_(options), counts_(add_state("counts", empty_counts(common(options)))) {
  check_options("ConfusionMatrix", common(options));
}

void ConfusionMatrix::update(const Tensor& prediction, const Tensor& target) {
  const at::NoGradGuard no_grad;
  const bool is_multiclass = options_.task == Task::multiclass;
  const Samples batch = samples_of(common(options_), prediction, target, /*as_probabilities=*/!is_multiclass);
  begin_update(batch.target);
  Tensor labels = batch.labels;
  if (!labels.defined())
    labels = is_multiclass ? batch.scores.argmax(1) : batch.scores.gt(options_.threshold).to(at::kLong);
  const int64_t classes = is_multiclass ? options_.num_classes : 2;
  Tensor cell = batch.target * classes + labels;
  if (options_.task == Task::multilabel)
    cell = cell + at::arange(options_.num_classes, cell.options()) * (classes * classes);
  const int64_t cells = counts_.numel();
  if (batch.valid.defined()) cell = cell.where(batch.valid, cells);
  counts_.add_(count(cell, cells + 1).narrow(0, 0, cells).view(counts_.sizes()));
}

Tensor ConfusionMatrix::compute() const {
  if (options_.normalize == "none") return counts_.clone();
  const Tensor counts = counts_.to(at::kDouble);
  if (options_.normalize == "true") return safe_divide(counts, counts.sum(-1, /*keepdim=*/true));
  if (options_.normalize == "pred") return safe_divide(counts, counts.sum(-2, /*keepdim=*/true));
  return safe_divide(counts, counts.sum({-2, -1}, /*keepdim=*/true));
}

[[maybe_unused]] static const bool registered_confusion_matrix = Registry<PredictionMetric>::add<ConfusionMatrix>(
    "ConfusionMatrix", "How often samples of each class were taken for each other class.");

}  // namespace fulgur::metrics
