#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fulgur/core/contracts/collectives.h"
#include "fulgur/core/contracts/run_views.h"
#include "fulgur/core/options/log_options.h"
#include "fulgur/core/state/media.h"
#include "fulgur/core/state/progress.h"
#include "fulgur/core/state/stage.h"
#include "fulgur/core/state/tensor.h"

namespace fulgur {

class LightningModule;
class Logger;
class LrScheduler;
class Metric;
class Optimizer;
class OptimizerHandle;
class StepJudge;
struct OptimizerPlan;

/// A request for a checkpoint. The callback owns ranking and names; the Trainer owns the files. `last.ckpt` points to
/// the newest checkpoint that is not weights-only.
struct CheckpointRequest {
  std::filesystem::path name;  ///< relative to the run's checkpoint folder, or absolute; without `.ckpt`
  std::string reason = {};     ///< reason, for the log
  bool best = false;           ///< `best.ckpt` should point to it
  bool keep = true;            ///< kept until the owner releases it; otherwise only while `last.ckpt` points to it
  bool weights_only = false;
  std::string owner = {};            ///< state key of the requesting callback
  std::optional<double> score = {};  ///< value of the monitored metric
};

/// The result of a request.
struct CheckpointInfo {
  uint64_t ticket = 0;
  std::filesystem::path path;  ///< path of the folder, once published
  int64_t epoch = 0;
  int64_t global_step = 0;
  CheckpointRequest request;
};

/// The view that modules and callbacks have of a run. They read, log and *request*; the Trainer acts on requests at one
/// place, at the same step on all ranks. Valid during a run and on the thread that runs it.
class FULGUR_API RunContext {
 public:
  virtual ~RunContext();

  virtual const Progress& progress() const = 0;
  /// Index of the current batch within its loader and epoch.
  virtual int64_t batch_idx() const = 0;
  /// The positions of the samples of the current predict batch in the order of its loader, int64 on the CPU: their
  /// indices in the data set, unless the loader shuffles. Undefined if ranks share the loader in an order that only it
  /// knows, and outside of predict.
  virtual Tensor sample_indices() const { return {}; }
  virtual TrainerFn fn() const = 0;
  virtual RunningStage stage() const = 0;
  virtual bool sanity_checking() const = 0;
  virtual bool fast_dev_run() const = 0;
  /// Batches that the stage runs (all loaders), after limits; nullopt if unknown.
  virtual std::optional<int64_t> num_batches(RunningStage stage) const = 0;
  /// True if a validation loop runs in this fit.
  bool has_validation() const { return extent().has_validation(); }

  // Rarely used parts, grouped by subject; see run_views.h.
  virtual const RunExtent& extent() const = 0;
  virtual RunMeters& meters() = 0;
  virtual PublishedCheckpoints& published_checkpoints() = 0;
  virtual const LoggedMetrics& logged_metrics() const = 0;
  virtual ManualOptimization& manual_optimization() = 0;
  virtual RunWeights& run_weights() = 0;

  /// A copy of a parameter of the module with the values of all ranks, if the strategy divides it among them; the copy
  /// is on the parameter's device. Takes the memory of one unit (fsdp and mesh.shard) or of one parameter.
  /// `run_weights().whole_parameters()` gathers all parameters, and can change them. All ranks must call it; layers of
  /// a pipeline cannot. Throws an Error for anything but a parameter of the module, such as a gradient or a
  /// view, and for a parameter that has no values yet (`deferred_init`, before the fit starts).
  Tensor gather(const Tensor& parameter);

  virtual int64_t rank() const = 0;
  virtual int64_t world_size() const = 0;
  bool is_global_zero() const { return rank() == 0; }
  virtual at::Device device() const = 0;
  /// All devices this process computes on, `device()` first.
  virtual std::vector<at::Device> devices() const { return {device()}; }
  virtual Collectives& collectives() = 0;

  virtual LightningModule& module() = 0;
  /// The module as an M; throws std::bad_cast if it is not one.
  template <class M>
  M& module_as();
  /// The optimizers of `optimizer_plan()`.
  std::vector<Optimizer*> optimizers() const;
  virtual std::vector<OptimizerHandle*> optimizer_handles() = 0;
  /// Index of `optimizer` among those that were planned, so that a hook such as `on_before_optimizer_step` knows which
  /// one it was called for. Throws an Error if it is not one of the run's.
  size_t optimizer_index(const Optimizer& optimizer) const;
  std::vector<LrScheduler*> lr_schedulers() const;
  /// Optimizers with their schedules, as they were planned.
  virtual const OptimizerPlan& optimizer_plan() const = 0;

  /// The newest value of a logged metric, by its final name; nullopt if it was never logged. It may copy from the
  /// device, and so wait for it.
  virtual std::optional<double> metric(std::string_view name) = 0;
  /// The value of a metric on which decisions depend, such as a monitor's: the last epoch's, or the last batch's for a
  /// metric of steps, regardless of the rows that were written. If training and validation log the same name, it is
  /// validation's. With several ranks it is the same on all of them (rank 0's, or that of all ranks with sync_dist),
  /// and all must call it at the same point. `Callback::monitored_metrics` must name it. Waits for the device.
  virtual std::optional<double> monitored_metric(std::string_view name) { return metric(name); }

  /// Logs a scalar; see `LogOptions`. A tensor stays on its device until it is read.
  virtual void log(std::string_view name, const Tensor& value, const LogOptions& options = {}) = 0;
  virtual void log(std::string_view name, double value, const LogOptions& options = {}) = 0;
  /// Logs the value that the metric has over all batches of the epoch and all ranks; it is computed and the metric is
  /// reset when the epoch ends. Of the options, only `prog_bar` and `logger` apply. The metric must exist until then.
  virtual void log(std::string_view name, Metric& metric, const LogOptions& options = {}) = 0;
  void log_dict(const std::vector<std::pair<std::string, Tensor>>& values, const LogOptions& options = {});
  void log_dict(const Metrics& values, const LogOptions& options = {});
  /// Sends a picture, histogram, text or table to the loggers; only rank 0's is sent. In a training batch, its step is
  /// the number of steps done at the batch's end, and the record is dropped if the batch fails. A tensor is copied when
  /// it is logged. In a training or evaluation batch on a GPU, the copy does not make the host wait; the record is
  /// sent up to five batches later. Outside a batch, the call waits for the tensor. A sanity check sends nothing.
  /// Throws an Error for a bad record (`check_media`), before the fit or evaluation starts, and in a step that
  /// `capture` records.
  virtual void log_media(const MediaRecord& record) = 0;
  /// Lets the loggers keep a file, or a folder with all that is in it; only rank 0's is kept. Loggers read it at once
  /// or, if they write on a thread, soon after. Throws an Error if the path does not exist on rank 0.
  virtual void log_artifact(const std::filesystem::path& path) = 0;
  /// Prints a line to the console, on rank 0 only.
  virtual void print(std::string_view line) = 0;

  /// The loggers as they were given to the run. Log through the run (`log`, `log_media`, `log_artifact`): one whose
  /// `may_block()` is true is in use on its own thread.
  virtual const std::vector<std::shared_ptr<Logger>>& loggers() const = 0;
  /// The run folder; empty if there is none.
  virtual std::filesystem::path log_dir() const = 0;
  virtual std::filesystem::path checkpoint_dir() const = 0;
  virtual std::optional<std::filesystem::path> last_checkpoint() const = 0;
  virtual std::optional<std::filesystem::path> best_checkpoint() const = 0;

  /// Seconds since the run began, the same on all ranks.
  virtual double elapsed_s() const = 0;
  /// Seconds that the fit has taken, including the parts before a resume; the same on all ranks.
  virtual double fit_time_s() const = 0;

  /// From the next window on, `count` batches make one optimizer step. All ranks must call it, at the same batch.
  virtual void set_accumulation(int64_t count) = 0;
  virtual int64_t accumulation() const = 0;
  /// Ends the fit at the end of this step, or once `min_epochs` and `min_steps` are reached. Any rank may call it;
  /// several ranks stop together at the step after their next agreement, about a second later (`trainer.agree_every`).
  virtual void request_stop(std::string reason) = 0;
  virtual bool stop_requested() const = 0;
  /// Requests a checkpoint at the end of this step (or epoch, or validation), and returns its ticket. All ranks must
  /// call it at the same step, since they collect its state together.
  virtual uint64_t request_checkpoint(CheckpointRequest request) = 0;
  /// From now on `judge`, which must outlive the run, decides before each step of the optimizer whether it is made.
  /// Call it in `setup` of a fit, on all ranks. In steps that the filter of the calling callback leaves out (`every`,
  /// `from`, `until`, `once`), the judge is not asked. Steps that are judged are not captured. Throws an Error in a
  /// context without training steps.
  virtual void judge_steps(StepJudge& judge);
};

template <class M>
M& RunContext::module_as() {
  return dynamic_cast<M&>(module());
}

}  // namespace fulgur
