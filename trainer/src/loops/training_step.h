#pragma once

#include "capture/captured_step.h"
#include "fulgur/data/device_prefetcher.h"
#include "loops/auto_micro_batch.h"
#include "loops/debug_checks.h"
#include "loops/run_ahead.h"
#include "loops/unregistered_leaves.h"
#include "run/batch_shaping.h"
#include "run/services.h"

namespace fulgur::detail {

/// The one sequence of a training step, of automatic and of manual optimization.
class TrainingStep final : public StepActions {
 public:
  TrainingStep(RunState& run, Services& services);
  ~TrainingStep() override;
  TrainingStep(const TrainingStep&) = delete;
  TrainingStep& operator=(const TrainingStep&) = delete;

  /// The loader of the batches, if it prefetches them to the device; else nullptr.
  void set_prefetcher(DevicePrefetcher* prefetcher);
  /// Call before an evaluation.
  void before_evaluation();
  /// Runs batch `batch_idx` of the epoch. Returns false if the module's `on_train_batch_start` skips the rest of the
  /// epoch.
  bool run_batch(int64_t batch_idx, const CapturedStep::ExpectedEnd& end);
  /// Steps a window that was cut short by the end of an unsized loader.
  void close_window();

  void manual_backward(const Tensor& loss, const BackwardOptions& options) override;
  void step_optimizer(Optimizer& optimizer, const Closure& closure) override;

 private:
  /// Notes that batch `batch_idx` begins, and brings it to the device.
  void begin_batch(int64_t batch_idx);
  /// The step of a batch that is not skipped, and the hooks after it.
  void train_on(const Batch& batch, int64_t batch_idx, const CapturedStep::ExpectedEnd& end);
  StepOutput automatic_step(const Batch& batch, int64_t batch_idx, const CapturedStep::ExpectedEnd& end);
  /// A step of automatic optimization that is not captured.
  StepOutput eager_step(const Batch& batch, int64_t batch_idx);
  StepOutput manual_step(const Batch& batch, int64_t batch_idx);
  /// The step of an optimizer that evaluates its loss several times.
  StepOutput closure_step(const Batch& batch, int64_t batch_idx);
  StepOutput forward_backward(const Batch& batch, int64_t batch_idx, bool last_of_window);
  /// What follows once a strategy has computed forward and backward of a batch: checks of the loss, and the hooks
  /// around backward.
  void take_computed(StepOutput& output);
  /// The strategy's computation of a batch; nullopt if it leaves this to the module.
  std::optional<StepOutput> compute_by_strategy(const Batch& batch, GradSync sync);
  /// The same in micro-batches, as small as memory requires. Gradients are exchanged after the last of them.
  StepOutput micro_batched(const Batch& batch, int64_t batch_idx, bool last_of_window);
  /// Forward and backward of one of them, the fraction `share` of the batch.
  StepOutput micro_batch(const Batch& part, int64_t batch_idx, double share, bool& stop);
  /// Checks a loss before its backward. If its batch must be left out, returns false, and `loss` has no graph any more.
  bool accepts(Tensor& loss);
  /// Backward of the fraction `share` of a batch, divided by the window's length and scaled by the precision.
  void backward_of(const Tensor& loss, double share, GradSync sync);
  /// Backward of a scaled loss, with the hooks around it.
  void backward(const Tensor& loss, GradSync sync, const BackwardOptions& options);
  /// Unscales the gradients, and calls the hook before a step of `optimizer`.
  void unscale(Optimizer& optimizer);
  void end_window();
  /// Counts the samples and tokens of a batch that has been trained on.
  void count_samples(const Batch& batch);
  /// Called while the device computes the launched step. The time counts as waiting for data.
  void read_ahead();
  /// Captures steps from here on if the run requests it and it is possible.
  void start_capturing();
  void count_step();
  void prepare_gradients();
  /// What callbacks decide about the step by its losses.
  NonFiniteDecision judge_step();
  /// The optimizer's step, for eager, manual and captured steps. The checkpoints' `before_writes` was called before it
  /// and its hooks, outside of any recording.
  void apply_step(Optimizer& optimizer, const Closure& closure);
  void step_and_zero(const Closure& closure);

  RunState& run_;
  Services& services_;
  OptimizerHandle* handle_;  // of automatic optimization, or nullptr
  ClipAlgorithm clip_algorithm_;
  bool counts_tokens_;
  BatchShaping shaping_{run_};
  UnregisteredLeaves leaves_{run_};
  std::optional<DebugChecks> debug_;
  std::optional<AutoMicroBatch> micro_batches_;
  bool makes_step_ = true;    // false: the optimizer's step is skipped
  bool left_out_ = false;     // the loss was not finite, so backward is skipped
  bool rolled_back_ = false;  // the weights of the step were discarded
  std::unique_ptr<CapturedStep> captured_;
  bool capturing_decided_ = false;
  DevicePrefetcher* prefetcher_ = nullptr;
  RunAhead run_ahead_;
  const BackwardOptions plain_backward_{};
};

/// Steps the schedulers of `interval` that are due according to their frequency.
void step_schedulers(RunState& run, Services& services, ScheduleInterval interval, int64_t count);

}  // namespace fulgur::detail
