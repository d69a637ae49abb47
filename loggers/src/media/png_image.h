#pragma once

#include <string>

#include "fulgur/core/state/tensor.h"

namespace fulgur {

/// A PNG file of `pixels`: (C, H, W) with 1 to 4 channels, uint8 on the CPU, contiguous. Throws an Error if libpng
/// cannot encode them.
std::string png_image(const Tensor& pixels);

}  // namespace fulgur
