#pragma once

#include <array>
#include <tuple>

#include "fulgur/core/state/tensor.h"

/// Batch norm, max pooling over 2x2 and ReLU in one, as operations of the dispatcher, so that captured steps can repeat
/// them. Images are float32 or bfloat16 on the CPU, contiguous with their channels innermost, of at least 2 x 2 pixels;
/// statistics are float32 of size (C). No result depends on the number of threads.
namespace fulgur::nn {

/// Of all values of a channel: mean, biased variance, and 1 / sqrt(variance + eps).
struct BatchStatistics {
  Tensor mean, var, invstd;
};
BatchStatistics batch_statistics(const Tensor& images, double eps);

/// Of each window of 2x2 of the normalised images the largest value, or 0 if it is below, (N, C, H / 2, W / 2), and
/// for `norm_pool_gradients`, which of its four values this is (uint8; 4 if none), and that value of `images`: with it,
/// the sums of the backward need not read the images. The last two are empty unless `for_gradients`. `weight` and
/// `bias` (C) may be undefined.
std::tuple<Tensor, Tensor, Tensor> norm_pool(const Tensor& images, const BatchStatistics& statistics,
                                             const Tensor& weight, const Tensor& bias, bool for_gradients);

/// The gradients of images, weight and bias for the gradient of the pooled ones. That of the images is undefined if
/// it is not wanted; the other two are float32.
std::array<Tensor, 3> norm_pool_gradients(const Tensor& gradient, const Tensor& images, const Tensor& winners,
                                          const Tensor& winning, const BatchStatistics& statistics,
                                          const Tensor& weight, bool for_images);

}  // namespace fulgur::nn
