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
/// the value of `images` that it comes from, or a NaN if it is 0: with it, `norm_pool_gradients` need not read the
/// images for its sums. It is left out (0) unless `for_gradients`. `weight` and `bias` (C) may be undefined.
std::tuple<Tensor, Tensor> norm_pool(const Tensor& images, const BatchStatistics& statistics, const Tensor& weight,
                                     const Tensor& bias, bool for_gradients);

/// The gradients of images, weight and bias for the gradient of the pooled ones. That of the images is undefined if
/// it is not wanted; the other two are float32.
std::array<Tensor, 3> norm_pool_gradients(const Tensor& gradient, const Tensor& images, const Tensor& winners,
                                          const BatchStatistics& statistics, const Tensor& weight, bool for_images);

}  // namespace fulgur::nn
