#pragma once

// The narrowest header that declares at::Tensor with its methods: <torch/torch.h> costs 12 s a file.
#include <ATen/core/Tensor.h>

namespace fulgur {
using at::Tensor;
}  // namespace fulgur
