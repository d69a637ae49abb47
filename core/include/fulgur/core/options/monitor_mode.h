#pragma once

#include <limits>

#include "fulgur/core/options/enum_names.h"

namespace fulgur {

/// Whether a small or a large value of a metric is better.
enum class MonitorMode { min, max };
constexpr auto enum_names(MonitorMode) {
  return std::to_array<EnumName<MonitorMode>>({{MonitorMode::min, "min"}, {MonitorMode::max, "max"}});
}

/// Whether `a` is better than `b`; false if one of them is NaN.
constexpr bool is_better(MonitorMode mode, double a, double b) { return mode == MonitorMode::max ? a > b : a < b; }

/// The infinity that is worse than every finite value.
constexpr double worst_value(MonitorMode mode) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return mode == MonitorMode::max ? -kInfinity : kInfinity;
}

}  // namespace fulgur
