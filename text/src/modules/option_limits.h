#pragma once

namespace fulgur::detail {

/// Of samples and tokens, above any practical use: sums and products of such numbers cannot overflow.
inline constexpr double kMostTextSamples = 1e9;

}  // namespace fulgur::detail
