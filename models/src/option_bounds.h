#pragma once

namespace fulgur::detail {

/// Bounds of options, above any practical use: the size of a weight with two such widths cannot overflow.
inline constexpr double kMostWidth = 1e9, kMostLayers = 1e4;

/// Of a convolution: the size of a weight with two such widths and a kernel of this size cannot overflow.
inline constexpr double kMostChannels = 1e6, kMostKernel = 1e3;

/// Of the samples that a validation logs.
inline constexpr double kMostSamples = 64;

}  // namespace fulgur::detail
