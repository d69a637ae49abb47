#pragma once

#include <exception>
#include <filesystem>
#include <optional>
#include <string>

#include "fulgur/core/contracts/hook_signatures.h"
#include "fulgur/core/contracts/hooks.h"
#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/contracts/run_context.h"
#include "fulgur/core/options/callback_filter.h"
#include "fulgur/core/state/batch.h"
#include "fulgur/core/state/outputs.h"

namespace fulgur {

/// Order among callbacks: first those that observe, then those that decide, then those that write checkpoints.
enum class Phase { observe, decide, checkpoint };

/// Implemented by a callback whose state belongs to the weights, such as their average.
class FULGUR_API FollowsWeights {
 public:
  virtual ~FollowsWeights();
  /// Called when a rollback (`on_nonfinite: rollback`, or that of a `StepJudge`) has restored the weights of a
  /// checkpoint; `state` is the callback's state in it, or empty if it has none, since the callback is new. The
  /// counters of the run are not moved back.
  virtual void roll_back(RunContext& run, const StateTree& state) = 0;
};

/// Observes or controls a run. Derive and override what you need; all hooks do nothing by default. Hooks run on the
/// run's thread, by phase and then in the order of `trainer.callbacks`, before the module's hook of the same name.
class FULGUR_API Callback : public Stateful {
 public:
  static constexpr const char* kRegistryKind = "callback";
  /// Options that a config may set for any callback, beside `class_path`.
  using CommonOptions = CallbackFilter;

  ~Callback() override;

  /// Selects the steps or epochs in which the Trainer calls this callback. Set it before the run. Throws a ConfigError
  /// for a filter that no step or epoch can pass.
  void set_common_options(const CallbackFilter& filter);
  const CallbackFilter& filter() const { return filter_; }
  /// The step and epoch, counted from 1, of the last step that the run has made; step 0 of epoch 1 before the first.
  static CallbackFilter::Position last_position(const Progress& progress);
  /// Whether the filter passes the last step. A hook that is always called, such as `on_train_start`, asks before it
  /// does what belongs to that step.
  bool passes_last_step(const Progress& progress) const { return filter_.passes(last_position(progress)); }

  /// Identifies the state in checkpoints, by default by the class name. Two stateful callbacks with the same key are a
  /// ConfigError.
  virtual std::string state_key() const;
  virtual Phase phase() const { return Phase::observe; }
  /// The metrics that this callback reads with `RunContext::monitored_metric`.
  virtual std::vector<std::string> monitored_metrics() const { return {}; }
  /// The metric without which this callback ends the run at the end of the first epoch: the Trainer warns early if
  /// neither validation nor the first training batch has logged it. Default: none.
  virtual std::optional<std::string> required_metric() const { return std::nullopt; }
  /// The state that a checkpoint stores. It is that of rank 0, and a resume loads it on all ranks. Gather per-rank
  /// state in `on_save_checkpoint` with `run.collectives()`. If an exception or a signal ends a validation, a batch or
  /// the hooks at the start or end of an epoch, and a resume repeats it, the Trainer also restores the callback's state
  /// from before it.
  StateTree state() const override { return {}; }
  void load_state(const StateTree&) override {}

  virtual void setup(RunContext&, TrainerFn) {}
  virtual void teardown(RunContext&, TrainerFn) {}
  /// Called after an exception in the run or a signal (`Interrupted`). A checkpoint may be requested here.
  virtual void on_exception(RunContext&, const std::exception&) {}
  /// Whether `on_exception` may request a checkpoint. Called only if that hook is overridden. If true, the Trainer
  /// remembers the run's state before each training batch, and the checkpoint holds the state before the batch that
  /// failed.
  virtual bool saves_on_exception() const { return true; }
  /// Whether this callback takes care of the predictions of `predict`. If any callback does, the Trainer keeps none in
  /// memory, its report has none, and it writes no files.
  virtual bool writes_predictions() const { return false; }
  /// The checkpoint from which a fit without `ckpt_path` resumes. Called once, before any setup.
  virtual std::optional<std::filesystem::path> resume_candidate() const { return std::nullopt; }

  virtual void on_fit_start(RunContext&) {}
  virtual void on_fit_end(RunContext&) {}
  virtual void on_sanity_check_start(RunContext&) {}
  virtual void on_sanity_check_end(RunContext&) {}

  virtual void on_train_start(RunContext&) {}
  virtual void on_train_end(RunContext&) {}
  virtual void on_train_epoch_start(RunContext&) {}
  virtual void on_train_epoch_end(RunContext&) {}
  virtual void on_train_batch_start(RunContext&, const Batch&, int64_t /*batch_idx*/) {}
  virtual void on_train_batch_end(RunContext&, const StepOutput&, const Batch&, int64_t /*batch_idx*/) {}
  virtual void on_before_zero_grad(RunContext&, Optimizer&) {}
  virtual void on_before_backward(RunContext&, const Tensor& /*loss*/) {}
  virtual void on_after_backward(RunContext&) {}
  /// With several optimizers, `run.optimizer_index(optimizer)` is the index of this one, `optimizer.name()` its class.
  virtual void on_before_optimizer_step(RunContext&, Optimizer&) {}

  virtual void on_validation_start(RunContext&) {}
  virtual void on_validation_end(RunContext&) {}
  virtual void on_validation_epoch_start(RunContext&) {}
  virtual void on_validation_epoch_end(RunContext&) {}
  virtual void on_validation_batch_start(RunContext&, const Batch&, int64_t /*batch_idx*/, int64_t /*loader_idx*/) {}
  virtual void on_validation_batch_end(RunContext&, const Outputs&, const Batch&, int64_t /*batch_idx*/,
                                       int64_t /*loader_idx*/) {}

  virtual void on_test_start(RunContext&) {}
  virtual void on_test_end(RunContext&) {}
  virtual void on_test_epoch_start(RunContext&) {}
  virtual void on_test_epoch_end(RunContext&) {}
  virtual void on_test_batch_start(RunContext&, const Batch&, int64_t /*batch_idx*/, int64_t /*loader_idx*/) {}
  virtual void on_test_batch_end(RunContext&, const Outputs&, const Batch&, int64_t /*batch_idx*/,
                                 int64_t /*loader_idx*/) {}

  virtual void on_predict_start(RunContext&) {}
  virtual void on_predict_end(RunContext&) {}
  virtual void on_predict_epoch_start(RunContext&) {}
  virtual void on_predict_epoch_end(RunContext&) {}
  virtual void on_predict_batch_start(RunContext&, const Batch&, int64_t /*batch_idx*/, int64_t /*loader_idx*/) {}
  virtual void on_predict_batch_end(RunContext&, const Outputs&, const Batch&, int64_t /*batch_idx*/,
                                    int64_t /*loader_idx*/) {}

  /// Called after every callback has decided; may add to or change what will be saved.
  virtual void on_save_checkpoint(RunContext&, StateTree& /*checkpoint*/) {}
  /// Called before `load_state`, and before the module plans its optimizers.
  virtual void on_load_checkpoint(RunContext&, const StateTree& /*checkpoint*/) {}
  /// Called once the request with this ticket has been written to disk.
  virtual void on_checkpoint_published(RunContext&, const CheckpointInfo&) {}
  /// Called if the request failed; the previous checkpoints are intact.
  virtual void on_checkpoint_failed(RunContext&, const CheckpointInfo&, const std::exception&) {}

 private:
  friend struct detail::ComponentAccess;
  template <class T>
  static HookMask hooks_of() {
#define FULGUR_CHECK(...) FULGUR_CHECK_HOOK(T, Callback, __VA_ARGS__)
    FULGUR_CALLBACK_SIGNATURES(FULGUR_CHECK)
#undef FULGUR_CHECK
    HookMask mask;
#define FULGUR_LOOK(hook) mask.set(Hook::hook, FULGUR_OVERRIDES(T, Callback, hook));
    FULGUR_STEP_HOOKS(FULGUR_LOOK)
    FULGUR_CALLBACK_HOOKS(FULGUR_LOOK)
#undef FULGUR_LOOK
    mask.exact = true;
    return mask;
  }
  HookMask overridden_;
  CallbackFilter filter_;
};

}  // namespace fulgur
