#pragma once

// The narrowest header that declares at::Tensor with its methods: <torch/torch.h> costs 12 s of compile time per file.
#include <ATen/core/Tensor.h>

#include <string>

#include "fulgur/core/export.h"

namespace fulgur {
using at::Tensor;

/// The shape as text, such as `[2, 3]`, for messages.
FULGUR_API std::string shape_text(at::IntArrayRef shape);
}  // namespace fulgur
