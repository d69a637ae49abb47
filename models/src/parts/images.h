#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "fulgur/core/state/tensor.h"

namespace fulgur::detail {

/// Throws a ConfigError that names the component unless `images` are floating-point (N, channels, H, W) with a height
/// and width of at least `least`.
void check_images(const Tensor& images, int64_t channels, int64_t least, const char* component);

/// Throws a ConfigError that names the component unless `input` is floating-point; for images, it names the transforms
/// that make them so.
void check_floating(const Tensor& input, const char* component);

/// Whether a program failed with `message` since one of its arguments are images of integers: that they must be
/// floating-point, and what to do. Empty if not.
std::string hint_for_integer_images(const std::vector<Tensor>& arguments, std::string_view message);

/// In training, sets the residual of each sample to zero with probability `share`, and divides the others by 1 - share
/// (Huang et al. 2016). Drawn by the generator of the tensor's device, one number per sample.
Tensor drop_paths(const Tensor& residual, double share, bool training);

}  // namespace fulgur::detail
