#pragma once

#include <ATen/core/stack.h>

#include <cstddef>

namespace fulgur::detail {

/// Registers the fallback for the dispatch key Fake, once. LibTorch does not use that key: it is below autograd and
/// above the kernels, and costs nothing for a thread that does not include it.
void register_fallback();

/// Shows the arguments of an operation to the process's OperationWatch; false if it has no such watch.
bool show_to_watch(const torch::jit::Stack& stack, size_t arguments);

}  // namespace fulgur::detail
