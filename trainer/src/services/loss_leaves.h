#pragma once

#include <vector>

#include "fulgur/core/contracts/module.h"

namespace fulgur::detail {

/// The tensors whose gradients a backward from `loss` computes, in no particular order.
std::vector<Tensor> leaves_of(const Tensor& loss);

/// `loss`, whose backward gives NaN to all of these leaves, besides their gradients. No values of the leaves are read:
/// one rank alone calls this, and values that ranks divide would have to be gathered by all of them.
Tensor with_nan_gradients(const Tensor& loss, const std::vector<Tensor>& leaves);

}  // namespace fulgur::detail
