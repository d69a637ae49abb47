#pragma once

#include <ATen/core/Tensor.h>

namespace fulgur::detail {

/// Replaces the columns of `matrix` [n, r] by orthonormal ones that span the same space (Gram-Schmidt, each column
/// twice). A column that depends on those before it, such as one of zeros, is replaced by the same column of `spare`
/// [n, r], orthogonalized like the others. Does not wait for a device.
void make_orthonormal(at::Tensor& matrix, const at::Tensor& spare);

}  // namespace fulgur::detail
