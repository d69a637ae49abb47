#pragma once

namespace fulgur::detail {

/// Bounds of options, above what any model has use for: the size of a weight of two such widths does not overflow.
inline constexpr double kMostWidth = 1e9, kMostLayers = 1e4;

}  // namespace fulgur::detail
