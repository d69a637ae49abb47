#pragma once

#include <vector>

#include "fulgur/core/module.h"

namespace fulgur::detail {

/// The tensors whose gradients a backward from `loss` makes, in no order that means something.
std::vector<Tensor> leaves_of(const Tensor& loss);

}  // namespace fulgur::detail
