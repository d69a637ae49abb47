#pragma once

#include <optional>

#include "fulgur/core/state/media.h"

namespace fulgur::detail {

/// Images (N, H, W) or (N, C, H, W) as one picture on their device, eight in a row, in their order; each has the whole
/// range of brightness, from its smallest to its largest value. Three channels are colours; of others, the first is
/// shown. Nullopt for inputs of other shapes. Does not wait for the device.
std::optional<ImageRecord> picture_of_samples(std::string name, const Tensor& images);

/// One row per sample: its number, label, predicted class and the probability of that. Waits for the device.
TableRecord table_of_samples(std::string name, const Tensor& labels, const Tensor& predictions,
                             const Tensor& confidences);

}  // namespace fulgur::detail
