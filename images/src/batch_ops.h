#pragma once

#include <c10/util/ArrayRef.h>

#include "fulgur/images/functional.h"

/// Operations on batches (N, C, H, W) on any device, with parameters (N, K) on the same one. On the CPU they give what
/// the functions of functional.h give for each image. They do not wait for the device: numbers of the host become
/// arguments of kernels, not copies.
namespace fulgur::images {

/// (1, C, 1, 1) on the device of `images`.
Tensor channel_values(const Tensor& images, const std::vector<double>& values, at::ScalarType dtype);
/// `parameters` has top and left of each window.
Tensor batch_windows(const Tensor& images, const Tensor& parameters, ImageSize size, PaddingMode mode,
                     c10::ArrayRef<double> fill);
/// Images with a parameter of 1 are mirrored along `dimension`.
Tensor batch_flip(const Tensor& images, const Tensor& parameters, int64_t dimension);
Tensor batch_to_float(const Tensor& images);
/// `parameters` has top, left, height and width of each box.
Tensor batch_erase(const Tensor& images, const Tensor& parameters, c10::ArrayRef<double> fill);
/// `parameters` are those of ColorJitter. A factor of 1 changes nothing.
Tensor batch_color_jitter(const Tensor& images, const Tensor& parameters, bool has_contrast, bool has_saturation);

}  // namespace fulgur::images
