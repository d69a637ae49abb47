#pragma once

#include <string_view>

namespace fulgur::detail {

/// Python's name of the number of steps in the state of a parameter: a scalar, which is the same on all ranks.
inline constexpr std::string_view kStepCount = "step";

}  // namespace fulgur::detail
