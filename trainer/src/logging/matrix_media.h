#pragma once

#include <string>
#include <vector>

#include "fulgur/core/contracts/logger.h"

namespace fulgur::detail {

/// A picture of the matrix, in which a cell is the darker the larger its share of its row is and shows its number if
/// that fits, and its numbers as a table, whose first cell is `axes`. Waits for the device.
std::vector<MediaRecord> draw_matrix(const std::string& name, const Tensor& values, const std::string& axes);

}  // namespace fulgur::detail
