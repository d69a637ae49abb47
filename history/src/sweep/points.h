#pragma once

#include <cstdint>
#include <vector>

#include "fulgur/history/sweep_spec.h"

namespace fulgur::history {

inline constexpr int64_t kMostTrials = 10'000;

/// How many different points the space has; saturates, and is that large for a range of real numbers.
uint64_t possible_points(const SweepSpec& spec);

/// The values of each point, one per axis. Point i depends only on the sweep file and i. A random point differs from
/// those before it.
std::vector<std::vector<ConfigNode>> points_of(const SweepSpec& spec);

}  // namespace fulgur::history
