#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "ambient_state.h"
#include "fulgur/nn/checkpoint.h"

namespace fulgur::nn {

/// During its lifetime `in_recompute()` of this thread is true: for a thread that takes part in another's recompute.
class RecomputeMark {
 public:
  explicit RecomputeMark(bool recomputing);
  ~RecomputeMark();
  RecomputeMark(const RecomputeMark&) = delete;
  RecomputeMark& operator=(const RecomputeMark&) = delete;

 private:
  bool recomputing_;
};

/// The slot of one dropped tensor. The graph owns it, so that what backward has freed is not recomputed into it.
struct Holder {
  struct Value {
    Tensor tensor;
    int64_t version;
  };
  std::map<int, Value> values;  ///< by backward pass; guarded by the frame's mutex
};

/// One checkpointed call: all that a second run needs, and the slots of the tensors that it saved. As in Python's
/// torch/utils/checkpoint.py, a backward pass recomputes all living slots when it finds one empty, and takes each value
/// out as it uses it. Hooks in the graph share the frame; device threads may arrive concurrently.
class CheckpointFrame : public std::enable_shared_from_this<CheckpointFrame> {
 public:
  CheckpointFrame(const CheckpointOptions& options, const std::vector<Tensor>& inputs,
                  detail::CheckpointRegion::Run run);

  /// Forward saves `tensor`: records its metadata and returns the slot of its value.
  std::shared_ptr<Holder> drop(const Tensor& tensor);
  /// Forward is done; from now on the recompute must save the same number of tensors.
  void complete() noexcept;
  /// Backward needs a value; `holder` belongs to this frame.
  Tensor take(Holder& holder);
  /// The recompute saves `tensor`. Throws to stop it if nothing more is needed.
  void keep(const Tensor& tensor);

 private:
  struct Kind {
    at::DimVector shape;
    at::ScalarType dtype;
    at::Device device;
    std::optional<int64_t> version;  ///< of a parameter, which must not change until backward
  };
  static Kind kind_of(const Tensor& tensor);
  static std::string text(const Kind& kind);
  void compare(size_t index, const Kind& found);
  void recompute();
  void run_again();
  void check() const;
  void forget(int pass);

  const CheckpointOptions options_;
  const detail::CheckpointRegion::Run run_;
  const std::vector<at::Device> devices_;
  const AutocastState autocast_;
  /// Whether something saw the operations of the forward before autograd, as `strategy: mesh` does.
  const bool is_seen_ = c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::DeferredInit);
  std::optional<GeneratorStates> generators_;
  std::vector<torch::autograd::SavedVariable> inputs_;

  // Recursive for a backward inside the function: it may re-enter the frame on the same thread.
  std::recursive_mutex mutex_;
  std::vector<std::weak_ptr<Holder>> holders_;
  std::vector<Kind> kinds_;
  bool complete_ = false;
  bool recomputing_ = false;
  // State of the current recompute.
  int pass_ = -1;
  size_t saved_ = 0;
  std::string difference_;
};

}  // namespace fulgur::nn
