#pragma once

namespace fulgur::detail {

/// Bounds of options, above any practical use: sums and products of such numbers cannot overflow.
inline constexpr double kMostSamples = 1e9;
inline constexpr double kMostWorkers = 4096, kMostBatchesAhead = 65536;

}  // namespace fulgur::detail
