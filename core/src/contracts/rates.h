#pragma once

#include <cmath>
#include <cstddef>
#include <string>

#include "fulgur/core/text/text.h"

namespace fulgur::detail {

inline std::string group_text(size_t index, const std::string& name) {
  return name.empty() ? cat("group ", index) : cat("group ", index, " '", name, "'");
}

// Also used for momentum.
inline bool is_rate(double value) { return std::isfinite(value) && value >= 0; }

}  // namespace fulgur::detail
