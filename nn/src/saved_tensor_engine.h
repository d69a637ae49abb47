#pragma once

#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>

namespace fulgur::nn {

/// Decides, while it lives, how tensors are kept that operations on this thread save for backward; the innermost
/// counts. Python keeps such hooks in its own engine, so LibTorch has an engine of ours, which asks for them. Made and
/// destroyed on one thread, in turn.
class SaveScope {
 public:
  /// Throws an Error where an engine of someone else is in use: Python's, in a process with `import torch`.
  SaveScope();
  virtual ~SaveScope();
  SaveScope(const SaveScope&) = delete;
  SaveScope& operator=(const SaveScope&) = delete;

  /// The hooks of the next tensor; nullptr: LibTorch keeps it as ever.
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() = 0;

 private:
  SaveScope* outer_;
};

}  // namespace fulgur::nn
