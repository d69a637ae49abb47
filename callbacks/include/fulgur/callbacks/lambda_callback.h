#pragma once

#include <functional>

#include "fulgur/core/contracts/callback.h"

// Hooks of Callback: name, parameters, arguments.
#define FULGUR_LAMBDA_HOOKS_OF_EVALUATION(HOOK, kind)                                                          \
  HOOK(on_##kind##_start, (RunContext & run), (run))                                                           \
  HOOK(on_##kind##_end, (RunContext & run), (run))                                                             \
  HOOK(on_##kind##_epoch_start, (RunContext & run), (run))                                                     \
  HOOK(on_##kind##_epoch_end, (RunContext & run), (run))                                                       \
  HOOK(on_##kind##_batch_start, (RunContext & run, const Batch& batch, int64_t batch_idx, int64_t loader_idx), \
       (run, batch, batch_idx, loader_idx))                                                                    \
  HOOK(on_##kind##_batch_end,                                                                                  \
       (RunContext & run, const Outputs& outputs, const Batch& batch, int64_t batch_idx, int64_t loader_idx),  \
       (run, outputs, batch, batch_idx, loader_idx))
#define FULGUR_LAMBDA_HOOKS(HOOK)                                                                                \
  HOOK(setup, (RunContext & run, TrainerFn fn), (run, fn))                                                       \
  HOOK(teardown, (RunContext & run, TrainerFn fn), (run, fn))                                                    \
  HOOK(on_exception, (RunContext & run, const std::exception& error), (run, error))                              \
  HOOK(on_fit_start, (RunContext & run), (run))                                                                  \
  HOOK(on_fit_end, (RunContext & run), (run))                                                                    \
  HOOK(on_sanity_check_start, (RunContext & run), (run))                                                         \
  HOOK(on_sanity_check_end, (RunContext & run), (run))                                                           \
  HOOK(on_train_start, (RunContext & run), (run))                                                                \
  HOOK(on_train_end, (RunContext & run), (run))                                                                  \
  HOOK(on_train_epoch_start, (RunContext & run), (run))                                                          \
  HOOK(on_train_epoch_end, (RunContext & run), (run))                                                            \
  HOOK(on_train_batch_start, (RunContext & run, const Batch& batch, int64_t batch_idx), (run, batch, batch_idx)) \
  HOOK(on_train_batch_end, (RunContext & run, const StepOutput& output, const Batch& batch, int64_t batch_idx),  \
       (run, output, batch, batch_idx))                                                                          \
  HOOK(on_before_zero_grad, (RunContext & run, Optimizer & optimizer), (run, optimizer))                         \
  HOOK(on_before_backward, (RunContext & run, const Tensor& loss), (run, loss))                                  \
  HOOK(on_after_backward, (RunContext & run), (run))                                                             \
  HOOK(on_before_optimizer_step, (RunContext & run, Optimizer & optimizer), (run, optimizer))                    \
  FULGUR_LAMBDA_HOOKS_OF_EVALUATION(HOOK, validation)                                                            \
  FULGUR_LAMBDA_HOOKS_OF_EVALUATION(HOOK, test)                                                                  \
  FULGUR_LAMBDA_HOOKS_OF_EVALUATION(HOOK, predict)                                                               \
  HOOK(on_save_checkpoint, (RunContext & run, StateTree & checkpoint), (run, checkpoint))                        \
  HOOK(on_load_checkpoint, (RunContext & run, const StateTree& checkpoint), (run, checkpoint))                   \
  HOOK(on_checkpoint_published, (RunContext & run, const CheckpointInfo& info), (run, info))                     \
  HOOK(on_checkpoint_failed, (RunContext & run, const CheckpointInfo& info, const std::exception& error),        \
       (run, info, error))

namespace fulgur {

/// A callback made from functions, for use in programs:
///
///     LambdaCallback({.on_train_start = [](RunContext& run) { run.print("it begins"); }})
///
/// Hooks without a function cost nothing. It has no state, and no name in a config.
class FULGUR_API LambdaCallback final : public Callback {
 public:
  /// A function for each hook of `Callback`, with its name and parameters, in its order.
  struct Hooks {
#define FULGUR_LAMBDA_MEMBER(name, parameters, arguments) std::function<void parameters> name = {};
    FULGUR_LAMBDA_HOOKS(FULGUR_LAMBDA_MEMBER)
#undef FULGUR_LAMBDA_MEMBER
    Phase phase = Phase::observe;
  };

  explicit LambdaCallback(Hooks hooks);
  ~LambdaCallback() override;

  Phase phase() const override { return hooks_.phase; }
#define FULGUR_LAMBDA_OVERRIDE(name, parameters, arguments) \
  void name parameters override {                           \
    if (hooks_.name) hooks_.name arguments;                 \
  }
  FULGUR_LAMBDA_HOOKS(FULGUR_LAMBDA_OVERRIDE)
#undef FULGUR_LAMBDA_OVERRIDE

 private:
  Hooks hooks_;
};

}  // namespace fulgur

#undef FULGUR_LAMBDA_HOOKS
#undef FULGUR_LAMBDA_HOOKS_OF_EVALUATION
