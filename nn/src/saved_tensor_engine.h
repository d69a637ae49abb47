#pragma once

#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>

namespace fulgur::nn {

/// During its lifetime, decides how tensors that operations on this thread save for backward are kept; the innermost
/// applies. Python keeps such hooks in its own engine, so we install our own engine in LibTorch, which asks for them.
/// Create and destroy on the same thread, in nested order.
class SaveScope {
 public:
  /// Throws an Error if a foreign engine is in use: Python's, in a process with `import torch`.
  SaveScope();
  virtual ~SaveScope();
  SaveScope(const SaveScope&) = delete;
  SaveScope& operator=(const SaveScope&) = delete;

  /// The hooks for the next tensor; nullptr: LibTorch keeps it as usual.
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() = 0;

 private:
  SaveScope* outer_;
};

}  // namespace fulgur::nn
