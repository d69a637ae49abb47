#pragma once

#include "fulgur/core/state/tensor.h"

namespace fulgur::detail {

/// Whether the memory of the tensor holds its values: a mark can say that they are its conjugates or negatives, or
/// zeros without memory.
FULGUR_API bool holds_its_values(const Tensor& tensor);

/// Whether `to.copy_(from)` is a copy of bytes that LibTorch would make on one thread: few values on the CPU, both
/// contiguous, of one dtype and shape, in memory of their own.
FULGUR_API bool is_plain_copy(const Tensor& to, const Tensor& from);

/// `to.copy_(from, non_blocking)`; ten times as fast for small tensors on the CPU, whose copy takes less time than
/// LibTorch needs to find out how to make it. Not recorded by autograd.
FULGUR_API void copy_values(const Tensor& to, const Tensor& from, bool non_blocking = false);

/// `tensor.clone()` in the same way.
FULGUR_API Tensor clone_values(const Tensor& tensor);

}  // namespace fulgur::detail
