#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "fulgur/core/export.h"
#include "fulgur/core/options/enum_names.h"
#include "fulgur/core/options/fields.h"

namespace fulgur::metrics {

/// What predictions and targets are, with N samples and C classes or labels:
///
/// | task | prediction | target |
/// |---|---|---|
/// | binary | (N, …) probabilities or logits, or integers 0 and 1 | (N, …) 0 or 1 |
/// | multiclass | (N, C, …) probabilities or logits, or (N, …) integer classes | (N, …) classes |
/// | multilabel | (N, C, …) probabilities or logits, or integers 0 and 1 | (N, C, …) 0 or 1 |
///
/// Floating-point predictions of a batch are logits if one of them is outside [0, 1], as in torchmetrics.
enum class Task { binary, multiclass, multilabel };
constexpr auto enum_names(Task) {
  return std::to_array<EnumName<Task>>(
      {{Task::binary, "binary"}, {Task::multiclass, "multiclass"}, {Task::multilabel, "multilabel"}});
}

/// How the values of the classes become one: `micro` counts all samples together, `macro` is the mean of the classes,
/// `weighted` their mean weighted by the number of targets, and `none` keeps one value per class.
enum class Average { micro, macro, weighted, none };
constexpr auto enum_names(Average) {
  return std::to_array<EnumName<Average>>(
      {{Average::micro, "micro"}, {Average::macro, "macro"}, {Average::weighted, "weighted"}, {Average::none, "none"}});
}

/// What all metrics of classification need to know.
struct Classification {
  Task task;
  int64_t num_classes;
  std::optional<int64_t> ignore_index;
};

}  // namespace fulgur::metrics
