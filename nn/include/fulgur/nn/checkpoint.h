#pragma once

#include <ATen/core/grad_mode.h>

#include <concepts>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/core/tensor.h"

namespace torch::nn {
class Sequential;
}

namespace fulgur::nn {

/// What Python's `torch.utils.checkpoint` takes by the same names.
struct CheckpointOptions {
  /// The recompute draws the same random numbers: of the CPU's default generator, and of those of the inputs' devices.
  bool preserve_rng_state = true;
  /// The recompute ends with the last tensor that backward needs. The function is left by an exception then, of a type
  /// that is no std::exception; false for one that cannot bear it (`noexcept`, `catch (...)`).
  bool early_stop = true;
  /// Shape, dtype and device of each recomputed tensor are compared with those of forward.
  bool determinism_check = true;
};

/// True while backward runs a checkpointed function again on this thread. For layers that change something of their own
/// in forward, such as running statistics: once is enough.
FULGUR_API bool in_recompute();

namespace detail {

/// While it lives, what operations on this thread save for backward is dropped, and recomputed by `run(inputs)` when
/// backward first asks for some of it.
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

/// A callable, or a pointer to a module with `forward`.
template <class Fn, class... Inputs>
decltype(auto) call_checkpointed(Fn& fn, const Inputs&... inputs) {
  if constexpr (std::invocable<Fn&, const Inputs&...>)
    return std::invoke(fn, inputs...);
  else
    return fn->forward(inputs...);
}

}  // namespace detail

/// `fn(inputs…)`, of which backward keeps only the inputs: what the operations in it save is dropped and computed again
/// by a second call of `fn` in backward. Python's `torch.utils.checkpoint.checkpoint(fn, *inputs,
/// use_reentrant=False)`: right under nesting, autocast, double backward, several backward passes (each computes
/// again), and for parameters that `fn` holds. Without gradients it is a plain call.
///
/// `fn` is a callable of tensors, a module holder or a shared_ptr to a module; it returns what it likes. A copy of it
/// lives as long as the graph does: let it hold modules by pointer, nothing of the stack by reference. It must do the
/// same each time: where the recompute saves another number of tensors, or others by shape, dtype or device, backward
/// throws an Error, and so it does where a parameter or a recomputed tensor was changed in place meanwhile. The
/// recompute runs on the thread of backward. Random numbers are those of forward; where other threads draw from the
/// CPU's default generator at the same time, they may not be.
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

/// `modules` on `input` in `segments` parts, as even as can be with the rest in the last. All parts but the last are
/// checkpointed, as in Python. Each module takes and gives one tensor. Throws an Error unless segments is in
/// [1, number of modules].
FULGUR_API Tensor checkpoint_sequential(const torch::nn::Sequential& modules, int64_t segments, const Tensor& input,
                                        const CheckpointOptions& options = {});

}  // namespace fulgur::nn
