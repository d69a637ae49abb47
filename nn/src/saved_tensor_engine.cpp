#include "saved_tensor_engine.h"

#include <torch/csrc/autograd/engine.h>

#include <utility>

#include "fulgur/core/errors.h"

namespace fulgur::nn {
namespace {

using torch::autograd::Engine;

thread_local SaveScope* innermost = nullptr;

class SavedTensorEngine final : public Engine {
 public:
  // As Engine asks of what derives from it.
  ~SavedTensorEngine() override { stop(); }
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return innermost ? innermost->hooks() : nullptr;
  }
};

Engine& saved_tensor_engine() {
  static SavedTensorEngine engine;
  return engine;
}

// When the library is loaded, so that no other engine has yet begun its threads; one that is not LibTorch's own stays.
[[maybe_unused]] const bool installed = [] {
  const bool plain = &Engine::get_default_engine() == &Engine::get_base_engine();
  if (plain) torch::autograd::set_default_engine_stub(saved_tensor_engine);
  return plain;
}();

}  // namespace

SaveScope::SaveScope() {
  if (&Engine::get_default_engine() != &saved_tensor_engine())
    throw Error(
        "[nn.checkpoint] the autograd engine of this process must be Fulgur's; another one is installed. Activation checkpointing and "
        "hooks of saved tensors do not work beside Python's torch.");
  outer_ = std::exchange(innermost, this);
}

SaveScope::~SaveScope() { innermost = outer_; }

}  // namespace fulgur::nn
