#pragma once

#include <any>
#include <functional>
#include <memory>

#include "fulgur/core/export.h"
#include "fulgur/core/state/tensor.h"

namespace fulgur::nn {

/// Python's `torch.autograd.graph.saved_tensors_hooks`: during its lifetime, each tensor that an operation on this
/// thread saves for backward is passed to `pack`, whose result is stored in the graph instead; `unpack` returns the
/// tensor, on the thread of backward. If hooks are nested, the innermost apply, and a checkpoint inside has its own
/// hooks. Neither may modify the tensor. `pack` gets it with its history: keep `tensor.detach()`, or the graph may own
/// itself. Create and destroy on the same thread.
class FULGUR_API SavedTensorsHooks {
 public:
  using Pack = std::function<std::any(const Tensor&)>;
  using Unpack = std::function<Tensor(const std::any&)>;
  SavedTensorsHooks(Pack pack, Unpack unpack);
  ~SavedTensorsHooks();
  SavedTensorsHooks(const SavedTensorsHooks&) = delete;
  SavedTensorsHooks& operator=(const SavedTensorsHooks&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fulgur::nn
