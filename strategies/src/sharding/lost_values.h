#pragma once

#include "fulgur/core/state/tensor.h"

namespace fulgur::detail {

/// What stands for a parameter of these sizes after a run in which no process had all of it, since the module was
/// created without memory (`deferred_init`). Reading it is an error of `strategy` that says so.
Tensor lost_values(const char* strategy, const Tensor& parameter, at::IntArrayRef sizes, at::IntArrayRef strides);

}  // namespace fulgur::detail
