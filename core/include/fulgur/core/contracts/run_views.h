#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fulgur/core/contracts/whole_parameters.h"
#include "fulgur/core/options/log_options.h"
#include "fulgur/core/state/progress.h"
#include "fulgur/core/state/stage.h"
#include "fulgur/core/state/state_tree.h"
#include "fulgur/core/state/tensor.h"

namespace fulgur {

struct BackwardOptions;
class Optimizer;

/// How long a fit is, as far as it is known. `RunContext::extent` returns it.
class FULGUR_API RunExtent {
 public:
  virtual ~RunExtent();

  virtual int64_t num_loaders(RunningStage stage) const = 0;
  /// Optimizer steps of the whole fit, including the part before a resume, with the current accumulation factor, or
  /// with the batch sizes that a callback plans (`PlansBatchSizes`). Nullopt if unknown: if a loader has no length and
  /// there is no `max_steps`, or if there is no limit at all.
  virtual std::optional<int64_t> estimated_steps() const = 0;
  /// Epoch and step limits of the fit; nullopt if not limited.
  virtual std::optional<int64_t> max_epochs() const = 0;
  virtual std::optional<int64_t> max_steps() const = 0;
  /// Fraction of the fit that is done (0 to 1), by steps if their number is known, else by time; nullopt if its length
  /// is unknown.
  virtual std::optional<double> progress_fraction() const = 0;
  /// True if a validation loop runs in this fit.
  virtual bool has_validation() const = 0;
  /// True if validation runs once per epoch, at its end.
  virtual bool validates_each_epoch_end() const = 0;
};

/// What monitors of speed and memory read, and how samples and tokens are counted. `RunContext::meters` returns it.
class FULGUR_API RunMeters {
 public:
  virtual ~RunMeters();

  /// True if the module counts the tokens of a batch (`num_tokens`).
  virtual bool has_token_counts() const = 0;
  /// From now on `progress().samples_seen` and `tokens_seen` are exact after each batch, so that all ranks make the
  /// same decisions. All ranks must call it; with several ranks it costs a small exchange per batch.
  virtual void count_each_batch() = 0;
  /// Seconds that training has waited for its loader, counted from the first call on. Use the difference of two
  /// readings.
  virtual double data_wait_s() const = 0;
  /// True at the end of a training batch after which a row of step metrics is written. Check it before you read values
  /// that are expensive to read.
  virtual bool is_logging_step() const = 0;
  /// The name of the precision, such as `32-true` or `bf16-mixed`.
  virtual std::string precision_name() const = 0;
  /// Bytes of float32 master weights that the precision keeps; 0 for most.
  virtual int64_t master_weight_bytes() const { return 0; }
  /// Whether each rank has only its part of the parameters between steps (`Strategy::divides_parameters`).
  virtual bool divides_parameters() const { return false; }
};

/// The checkpoints that a fit has written, for callbacks that keep some of them: `RunContext::published_checkpoints`.
class FULGUR_API PublishedCheckpoints {
 public:
  virtual ~PublishedCheckpoints();

  /// Whether this run, possibly in an earlier process, has written the checkpoint. False for those of another run: of
  /// the one whose checkpoint this run began from, or whose folder it continues a copy of. All ranks must call it.
  virtual bool owns_checkpoint(const std::filesystem::path& path) = 0;
  /// Removes a published checkpoint that this owner no longer keeps, once the next one is safe; a checkpoint of another
  /// run stays. All ranks must call it.
  virtual void release_checkpoint(const std::filesystem::path& path, std::string_view owner) = 0;
};

/// The metrics that have been logged. `RunContext::logged_metrics` returns them.
class FULGUR_API LoggedMetrics {
 public:
  virtual ~LoggedMetrics();

  /// The loop that logged the metric; nullopt if it was never logged.
  virtual std::optional<RunningStage> metric_stage(std::string_view name) const = 0;
  /// Names of all metrics that have a value.
  virtual std::vector<std::string> metric_names() const = 0;
  /// Newest values of the metrics logged with prog_bar. It reads from the device, so call it when a line is drawn, not
  /// in each step.
  virtual Metrics progress_metrics() const = 0;
};

/// What callbacks that read or average the weights of a fit need. `RunContext::run_weights` returns it.
class FULGUR_API RunWeights {
 public:
  virtual ~RunWeights();

  /// How many optimizer steps the run has skipped, because gradients were not finite or a StepJudge decided it: a
  /// scalar on the CPU, or on the device if only the device knows. It is the run's own tensor, which further steps
  /// change. With manual optimization it counts the batches in which all steps were skipped, from the first call on;
  /// only differences have a meaning. Does not wait.
  virtual Tensor skipped_steps() const = 0;
  /// The state of an optimizer of the run with whole tensors, however the strategy divides it. All ranks must call it;
  /// those other than rank 0 may get null.
  virtual StateTree optimizer_state(const Optimizer& optimizer);
  /// Gathers parameters that the strategy divides among the ranks, until the result is destroyed; what is written to
  /// them stays. Needed outside of training steps, evaluations and saves to read them. Null if they are whole. All
  /// ranks must call it.
  [[nodiscard]] virtual std::unique_ptr<WholeParameters> whole_parameters() { return nullptr; }
  /// See `RunContext::gather`.
  virtual Tensor gather(const Tensor& parameter);
  /// The sizes of a parameter of all ranks together: with `mesh.tensor`, those that it has here may be of a part.
  virtual std::vector<int64_t> whole_sizes(const Tensor& parameter) const { return parameter.sizes().vec(); }
  /// The reason why `update_batch_norm` cannot run in this fit; nullopt if it can.
  virtual std::optional<std::string> cannot_update_batch_norm() const = 0;
  /// Announces that `on_train_end` will call `update_batch_norm`. The run then saves its last state before
  /// `on_train_end`, so that a process that dies in the pass loses no training. Call it in `on_train_start`, on all
  /// ranks.
  virtual void will_update_batch_norm() = 0;
  /// Recomputes the running statistics of all batch norms in training mode with the module's current weights, as
  /// torch.optim.swa_utils.update_bn does: one pass of `training_step` over the training data without gradients, in
  /// which each batch has the same weight. With several ranks, the statistics are the mean over ranks. Values that the
  /// module logs are dropped, and the random numbers of the run do not change. Call it in `on_train_end`, on all ranks.
  /// If the loader has no length, the pass reads at most as many batches as were trained. A signal ends the pass, and
  /// then the run, which repeats the pass when it is resumed. Returns the names of the buffers that were recomputed:
  /// none after a signal or, with a warning, if the data has no batch; the statistics are then what they were.
  virtual std::vector<std::string> update_batch_norm() = 0;
};

/// What manual optimization does through the run. `RunContext::manual_optimization` returns it, and LightningModule
/// offers it to modules.
class FULGUR_API ManualOptimization {
 public:
  virtual ~ManualOptimization();

  /// Runs backward through precision, hooks and strategy, in manual optimization only.
  virtual void manual_backward(const Tensor& loss, const BackwardOptions& options) = 0;
  /// Averages the gradients of `optimizer` over all ranks; all ranks must call it. See Strategy::sync_gradients.
  virtual void sync_gradients(Optimizer& optimizer) = 0;
  /// Unscales the gradients of an optimizer if the precision scales the loss. Call it once per step to read them in
  /// manual optimization before `step`. `clip_gradients` calls it.
  virtual void unscale_gradients(Optimizer& /*optimizer*/) {}
  /// Whether manual backwards exchange gradients between ranks or accumulate them locally.
  virtual void set_manual_sync(bool on) = 0;
};

}  // namespace fulgur
