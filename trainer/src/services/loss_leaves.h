#pragma once

#include <vector>

#include "fulgur/core/contracts/module.h"

namespace fulgur::detail {

/// The tensors whose gradients a backward from `loss` computes, in no particular order.
std::vector<Tensor> leaves_of(const Tensor& loss);

}  // namespace fulgur::detail
