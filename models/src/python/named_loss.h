#pragma once

#include "fulgur/models/python_model.h"

namespace fulgur::detail {

/// Whether the loss is that of a classification: of one of several classes, or of several independent ones.
bool is_of_classes(NamedLoss loss);
bool is_of_binary_classes(NamedLoss loss);

/// The share of correct predictions, a float64 scalar on the device. The loss is one of the two kinds above.
Tensor accuracy_of(NamedLoss loss, const Tensor& output, const Tensor& target);

/// What prediction returns for a loss of a classification.
Outputs predictions_of(NamedLoss loss, const Tensor& output);

}  // namespace fulgur::detail
