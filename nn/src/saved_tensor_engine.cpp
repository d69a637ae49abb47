#include "saved_tensor_engine.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>

#include "fulgur/core/device/accelerator.h"
#include "fulgur/core/system/no_signals.h"
#include "fulgur/core/text/errors.h"

namespace fulgur::nn {
namespace {

using torch::autograd::Engine;

thread_local SaveScope* innermost = nullptr;

class SavedTensorEngine final : public Engine {
 public:
  // As Engine requires of derived classes.
  ~SavedTensorEngine() override { stop(); }
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return innermost ? innermost->hooks() : nullptr;
  }

  torch::autograd::variable_list execute(const torch::autograd::edge_list& roots,
                                         const torch::autograd::variable_list& inputs, bool keep_graph,
                                         bool create_graph, bool accumulate_grad,
                                         const torch::autograd::edge_list& outputs) override {
    if (served_.load(std::memory_order_acquire) != accelerator_count()) serve_new_devices();
    return Engine::execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  }

 private:
  // LibTorch starts a thread for each device at the first backward of the process, and a backward on a device that came
  // later fails an assertion. CUDA's devices come with a library that is loaded when a run requests it: they get their
  // threads here.
  void serve_new_devices() {
    const std::lock_guard<std::mutex> lock(serving_);
    const int64_t accelerators = accelerator_count();
    initialize_device_threads_pool();
    const size_t before = device_ready_queues_.size(), devices = std::max(most_devices(), before);
    for (size_t device = before; device < devices; ++device)
      device_ready_queues_.push_back(std::make_shared<torch::autograd::ReadyQueue>());
    const NoSignals no_signals;
    for (size_t device = before; device < devices; ++device)
      std::thread([this, device, queue = device_ready_queues_[device]] {
        thread_init(static_cast<int>(device), queue);
      }).detach();
    served_.store(accelerators, std::memory_order_release);
  }

  // As counted by the engine: one thread serves the devices of all kinds with the same index.
  static size_t most_devices() {
    size_t most = 0;
    for (const auto& registered : c10::impl::device_guard_impl_registry) {
      const auto* const impl = registered.load();
      if (impl == nullptr || impl->type() == at::kCPU || impl->type() == at::kMeta || impl->type() == at::kLazy)
        continue;
      most = std::max(most, static_cast<size_t>(std::max<int>(impl->deviceCount(), 0)));
    }
    return most;
  }

  std::mutex serving_;
  std::atomic<int64_t> served_{0};  ///< accelerators whose devices have threads
};

Engine& saved_tensor_engine() {
  static SavedTensorEngine engine;
  return engine;
}

// When the library is loaded, so that no other engine has started its threads yet; an engine that is not LibTorch's own
// stays.
[[maybe_unused]] const bool installed = [] {
  const bool plain = &Engine::get_default_engine() == &Engine::get_base_engine();
  if (plain) torch::autograd::set_default_engine_stub(saved_tensor_engine);
  return plain;
}();

}  // namespace

SaveScope::SaveScope() {
  if (&Engine::get_default_engine() != &saved_tensor_engine())
    throw Error(
        "[nn.checkpoint] the autograd engine of this process must be Fulgur's; another one is installed. Activation "
        "checkpointing and hooks of saved tensors do not work together with Python's torch.");
  outer_ = std::exchange(innermost, this);
}

SaveScope::~SaveScope() { innermost = outer_; }

}  // namespace fulgur::nn
