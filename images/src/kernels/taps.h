#pragma once

#include <cstdint>
#include <vector>

#include "fulgur/images/functional.h"

namespace fulgur::images {

/// How each pixel of an axis is a weighted sum of neighbouring pixels of an input axis: integer weights whose sum is
/// 2^bits. A value of 255 · 64 with a sum of |weights| of up to 1.8 · 2^16 fits into int32.
struct Taps {
  int64_t outputs = 0;
  int64_t count = 0;             ///< weights per output, filled up with zeros to a multiple of 8
  int bits = 0;                  ///< 14 to 16
  std::vector<int32_t> first;    ///< the first input of each output
  std::vector<int32_t> used;     ///< how many inputs it has: first + used is at most the length of the input
  std::vector<int16_t> weights;  ///< outputs × count
};

/// The taps of `resize` along one axis; not for nearest.
void resize_taps(int64_t inputs, int64_t outputs, Interpolation interpolation, bool antialias, Taps& taps);
/// The taps of a blur with the symmetric `kernel`, whose sum is 1, along an axis that is mirrored at its ends.
void blur_taps(int64_t length, const std::vector<double>& kernel, Taps& taps);

/// The inputs that `nearest` takes, as LibTorch computes them.
void nearest_places(int64_t inputs, int64_t outputs, std::vector<int32_t>& places);

/// The weighted sums along both axes of the part `box` of a uint8 image, rounded once; for weights that are not
/// negative, with which the order of the axes does not matter.
Tensor weighted_sums(const Tensor& image, const Box& box, const Taps& rows, const Taps& columns);

}  // namespace fulgur::images
