#pragma once

namespace fulgur::detail {

/// Bounds of options, above what any run has use for: sums and products of such numbers are far from overflowing.
inline constexpr double kMostSamples = 1e9;
inline constexpr double kMostWorkers = 4096, kMostBatchesAhead = 65536;

}  // namespace fulgur::detail
