#pragma once

#include <ATen/core/grad_mode.h>

#include <concepts>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/core/state/tensor.h"

namespace torch::nn {
class Sequential;
}

namespace fulgur::nn {

/// Options with the names of Python's `torch.utils.checkpoint`.
struct CheckpointOptions {
  /// The recompute draws the same random numbers: from the CPU's default generator, and from those of the inputs'
  /// devices.
  bool preserve_rng_state = true;
  /// The recompute stops at the last tensor that backward needs. It then leaves the function with an exception that is
  /// not derived from std::exception. Set it to false for a function that does not allow this (`noexcept`, `catch
  /// (...)`).
  bool early_stop = true;
  /// Compares shape, dtype and device of each recomputed tensor with those of forward.
  bool determinism_check = true;
};

/// True while backward runs a checkpointed function again on this thread. Layers that modify state in forward, such as
/// running statistics, check it, since the state must be modified only once.
FULGUR_API bool in_recompute();

namespace detail {

/// During its lifetime, tensors that operations on this thread save for backward are dropped, and recomputed by
/// `run(inputs)` when backward first needs them.
class FULGUR_API CheckpointRegion {
 public:
  using Run = std::function<void(const std::vector<Tensor>&)>;
  CheckpointRegion(const CheckpointOptions& options, const std::vector<Tensor>& inputs, Run run);
  ~CheckpointRegion();
  CheckpointRegion(const CheckpointRegion&) = delete;
  CheckpointRegion& operator=(const CheckpointRegion&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Calls `fn`, which is a callable or a pointer to a module with `forward`.
template <class Fn, class... Inputs>
decltype(auto) call_checkpointed(Fn& fn, const Inputs&... inputs) {
  if constexpr (std::invocable<Fn&, const Inputs&...>)
    return std::invoke(fn, inputs...);
  else
    return fn->forward(inputs...);
}

}  // namespace detail

/// Calls `fn(inputs…)` and keeps only the inputs for backward: tensors that its operations save are dropped, and
/// recomputed by a second call of `fn` in backward. Python's `torch.utils.checkpoint.checkpoint(fn, *inputs,
/// use_reentrant=False)`: supports nesting, autocast, double backward, several backward passes (each recomputes), and
/// parameters that `fn` holds. Without gradients it is a plain call.
///
/// `fn` is a callable taking tensors, a module holder or a shared_ptr to a module; it may return anything. A copy of it
/// lives as long as the graph: let it hold modules by pointer, and nothing on the stack by reference. It must be
/// deterministic: if the recompute saves a different number of tensors, or different shapes, dtypes or devices,
/// backward throws an Error, as it does if a parameter or a recomputed tensor was changed in place in between. The
/// recompute runs on the thread of backward. Random numbers are those of forward, unless other threads draw from the
/// CPU's default generator at the same time.
template <class Fn, class... Inputs>
requires(std::convertible_to<const Inputs&, const Tensor&>&&...) auto checkpoint(const CheckpointOptions& options,
                                                                                 Fn&& fn, const Inputs&... inputs) {
  if (!at::GradMode::is_enabled()) return detail::call_checkpointed(fn, static_cast<const Tensor&>(inputs)...);
  const auto kept = std::make_shared<std::decay_t<Fn>>(std::forward<Fn>(fn));
  const detail::CheckpointRegion region(options, {static_cast<const Tensor&>(inputs)...},
                                        [kept](const std::vector<Tensor>& again) {
                                          [&]<size_t... I>(std::index_sequence<I...>) {
                                            static_cast<void>(detail::call_checkpointed(*kept, again[I]...));
                                          }
                                          (std::index_sequence_for<Inputs...>());
                                        });
  return detail::call_checkpointed(*kept, static_cast<const Tensor&>(inputs)...);
}

template <class Fn, class... Inputs>
requires(!std::same_as<std::remove_cvref_t<Fn>, CheckpointOptions> &&
         (std::convertible_to<const Inputs&, const Tensor&> && ...)) auto checkpoint(Fn&& fn, const Inputs&... inputs) {
  return checkpoint(CheckpointOptions(), std::forward<Fn>(fn), inputs...);
}

/// Applies `modules` to `input` in `segments` parts, as even as possible with the remainder in the last. All parts
/// except the last are checkpointed, as in Python. Each module takes and returns one tensor. Throws an Error unless
/// segments is in [1, number of modules].
FULGUR_API Tensor checkpoint_sequential(const torch::nn::Sequential& modules, int64_t segments, const Tensor& input,
                                        const CheckpointOptions& options = {});

}  // namespace fulgur::nn
