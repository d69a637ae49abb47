#pragma once

namespace fulgur::tables {

/// Bounds of options, above any practical use: sums and products of such numbers cannot overflow.
inline constexpr double kMostRows = 1e9, kMostBufferRows = 1e8;

}  // namespace fulgur::tables
