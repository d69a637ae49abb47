#pragma once

#include <memory>

#include "direct_call.h"

namespace fulgur::detail {

/// `to.copy_(from)` for tensors of 2 or 4 bytes a value, one of which has the last dimensions in another order in
/// memory, as if images with channels innermost are flattened: matrices are transposed in tiles of whole cache lines.
/// nullptr if the call is another one, or small.
std::unique_ptr<DirectCall> make_transposed_copy(const Tensor& to, const Tensor& from);

}  // namespace fulgur::detail
