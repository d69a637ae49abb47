#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/core/state/tensor.h"

namespace fulgur::detail {

/// Lines of `predictions.jsonl`, one per row of `columns` (on the CPU, contiguous, with equal numbers of rows).
/// Non-finite numbers are the strings NaN, Infinity and -Infinity, as in JsonlLogger.
std::string prediction_lines(const std::vector<std::pair<std::string, Tensor>>& columns,
                             std::optional<size_t> loader_idx);

}  // namespace fulgur::detail
