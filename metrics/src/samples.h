#pragma once

#include <string_view>

#include "fulgur/core/options/field_traits.h"
#include "fulgur/core/state/tensor.h"
#include "fulgur/metrics/classification.h"

namespace fulgur::metrics {

/// The options that all metrics of classification have, under the same names.
template <class Options>
Classification common(const Options& options) {
  return {options.task, options.num_classes, options.ignore_index};
}
template <class Options>
void classification_fields(Options& options, Fields& f) {
  f(options.task, "task", "What predictions and targets are.");
  f(options.num_classes, "num_classes", "Number of classes, or of labels (multilabel); not used by binary.")
      .at_least(0);
  f(options.ignore_index, "ignore_index", "Samples with this target do not count.");
}

/// Throws a ConfigError if the options do not fit together; `metric` is named in it.
void check_options(std::string_view metric, const Classification& options);

/// Columns of a prediction: 1 for binary, else num_classes.
int64_t columns_of(const Classification& options);

/// Throws an Error if the shapes or dtypes of a batch do not fit the task.
void check_batch(const Classification& options, const Tensor& prediction, const Tensor& target);

/// A batch with one row per sample.
struct Samples {
  Tensor scores;  ///< (N, C): probabilities; undefined if the predictions are classes
  Tensor labels;  ///< multiclass: (N) classes; else (N, C) of 0 and 1. Undefined if there are scores
  Tensor target;  ///< multiclass: (N), in [0, C); else (N, C). Int64. Ignored samples have 0 in labels and target
  Tensor valid;   ///< like `target`, bool; undefined if no sample is ignored
};
/// Brings a batch into this form. `as_probabilities`: applies sigmoid or softmax to logits.
Samples samples_of(const Classification& options, const Tensor& prediction, const Tensor& target,
                   bool as_probabilities);

/// How often each of the integers 0 … bins - 1 is in `index` (any shape); int64 of shape (bins). Does not wait for the
/// device. The index has no others: `samples_of` checks the classes.
Tensor count(const Tensor& index, int64_t bins);

/// a / b, and 0 if b is 0.
Tensor safe_divide(const Tensor& a, const Tensor& b);

}  // namespace fulgur::metrics
