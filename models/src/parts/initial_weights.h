#pragma once

#include "fulgur/core/state/tensor.h"

namespace fulgur::detail {

/// Draws from a normal distribution that is cut off at ±2, in place, as torch.nn.init.trunc_normal_ does.
void trunc_normal(const Tensor& weight, double deviation);

/// Draws from a normal distribution with variance 2 / (out_channels · kernel area), in place: He et al. 2015 with
/// `fan_out`, for a convolution's weight (out, in, H, W).
void he_normal_of_outputs(const Tensor& weight);

/// Glorot and Bengio 2010: uniform in ±√(6 / (rows + columns)), in place, for a matrix.
void xavier_uniform(const Tensor& weight);

}  // namespace fulgur::detail
