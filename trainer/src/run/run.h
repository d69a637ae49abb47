#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "checkpointing/checkpoint_store.h"
#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/core/callback.h"
#include "fulgur/core/data_module.h"
#include "fulgur/core/logger.h"
#include "fulgur/core/module.h"
#include "fulgur/core/strategy.h"
#include "fulgur/trainer/trainer.h"
#include "loops/nonfinite_policy.h"
#include "run/log_store.h"
#include "run/rank_consensus.h"
#include "run/run_folder.h"
#include "run/seen_counts.h"
#include "run/step_rows.h"

namespace fulgur::detail {

class ReplicaContext;

/// Loaders of one stage with their numbers of batches after limits.
struct StageLoaders {
  Loaders loaders;
  std::vector<std::optional<int64_t>> batches;  ///< nullopt: unknown until the loader ends
  std::vector<bool> sized;                      ///< whether the loader knows its length, on all ranks
  /// Of all loaders; nullopt if one is unknown.
  std::optional<int64_t> total() const;
};

/// What a module asks of the training step under way: TrainingStep.
class StepActions {
 public:
  virtual ~StepActions() = default;
  /// `RunContext::manual_backward`, in training_step.
  virtual void manual_backward(const Tensor& loss, const BackwardOptions& options) = 0;
  /// One step of `optimizer`, in training_step of manual optimization or in the optimizer_step hook.
  virtual void step_optimizer(Optimizer& optimizer, const Closure& closure) = 0;
};

/// The state of one run and the RunContext that modules and callbacks see of it. The loops work on its members.
class Run final : public RunContext {
 public:
  Run(const TrainerOptions& options, const TrainerComponents& components, TrainerFn fn);
  ~Run() override;

  // ---- RunContext ----
  const Progress& progress() const override { return progress_; }
  int64_t batch_idx() const override { return batch_idx_; }
  TrainerFn fn() const override { return fn_; }
  RunningStage stage() const override { return stage_; }
  bool sanity_checking() const override { return sanity_checking_; }
  bool fast_dev_run() const override { return options.fast_dev_run.batches > 0; }
  std::optional<int64_t> num_batches(RunningStage stage) const override;
  int64_t num_loaders(RunningStage stage) const override;
  std::optional<int64_t> estimated_steps() const override;
  std::optional<int64_t> max_epochs() const override { return epoch_limit; }
  bool has_validation() const override { return validation_runs; }
  std::optional<int64_t> max_steps() const override {
    return step_limit >= 0 ? std::optional(step_limit) : std::nullopt;
  }
  std::optional<double> progress_fraction() const override;
  void count_each_batch() override { seen.count_each_batch(); }
  bool has_token_counts() const override { return model->overridden().has(Hook::num_tokens) && !tokens_unknown; }
  bool validates_each_epoch_end() const override {
    return options.check_val_every_n_epoch == 1 && options.val_check_interval.at_epoch_end();
  }
  int64_t rank() const override { return strategy->rank(); }
  int64_t world_size() const override { return strategy->world_size(); }
  at::Device device() const override { return strategy->device(); }
  std::vector<at::Device> devices() const override { return strategy->devices(); }
  Collectives& collectives() override { return strategy->collectives(); }
  LightningModule& module() override { return *model; }
  std::vector<Optimizer*> optimizers() override;
  std::vector<OptimizerHandle*> optimizer_handles() override;
  std::vector<LrScheduler*> lr_schedulers() override;
  const OptimizerPlan& optimizer_plan() const override { return plan; }
  void sync_gradients(Optimizer& optimizer) override { strategy->sync_gradients(optimizer); }
  void manual_backward(const Tensor& loss, const BackwardOptions& backward_options) override;
  void unscale_gradients(Optimizer& optimizer) override;
  int64_t master_weight_bytes() const override { return strategy->precision().extra_bytes(); }
  void set_manual_sync(bool on) override { manual_sync = on; }
  /// With several ranks only what was written, which is the same on all of them.
  std::optional<double> metric(std::string_view name) override;
  std::optional<RunningStage> metric_stage(std::string_view name) const override { return logs.stage_of(name); }
  std::vector<std::string> metric_names() const override { return logs.names(); }
  Metrics progress_metrics() override { return logs.progress_values(); }
  void log(std::string_view name, const Tensor& value, const LogOptions& options) override;
  void log(std::string_view name, double value, const LogOptions& options) override;
  void print(std::string_view line) override;
  const ConfigNode& hparams() const override { return model->hparams(); }
  const std::vector<std::shared_ptr<Logger>>& loggers() const override { return active_loggers; }
  std::filesystem::path log_dir() const override { return run_dir; }
  std::filesystem::path checkpoint_dir() const override { return checkpoint_folder_of(run_dir); }
  std::optional<std::filesystem::path> last_checkpoint() const override { return checkpoints.last(); }
  std::optional<std::filesystem::path> best_checkpoint() const override { return checkpoints.best(); }
  double elapsed_s() const override { return agreement.clock_s(); }
  double fit_time_s() const override { return progress_.fit_time_s + elapsed_s() - fit_started_s; }
  double data_wait_s() const override {
    counts_data_wait = true;
    return waited_for_data_s;
  }
  bool is_logging_step() const override {
    return options.log_every_n_steps > 0 && progress_.global_step - logged_step_ >= options.log_every_n_steps;
  }
  std::string precision_name() const override { return strategy->precision().name(); }
  void set_accumulation(int64_t count) override;
  int64_t accumulation() const override { return accumulation_; }
  void request_stop(std::string reason) override;
  bool stop_requested() const override { return stop_reason.has_value(); }
  /// A requested stop waits for min_epochs and min_steps.
  bool may_stop() const;
  uint64_t request_checkpoint(CheckpointRequest request) override { return checkpoints.request(std::move(request)); }
  void release_checkpoint(const std::filesystem::path& path, std::string_view owner) override {
    checkpoints.release(path, owner);
  }

  // ---- used by the loops ----
  bool channels_last() const { return options.memory_format == "channels_last"; }
  /// Moves the batch to the device through the transfer hooks, and converts it to the run's memory format.
  void batch_to_device(Batch& batch, int64_t loader_idx);
  /// Its two parts.
  void transfer(Batch& batch, int64_t loader_idx);
  void to_memory_format(Batch& batch) const;
  /// Calls `function` on each callback, in order. Logging inside has scope `scope`.
  template <class Function>
  void each_callback(LogScope scope, Function function) {
    ScopeGuard guard(*this, scope);
    for (const auto& callback : callbacks) call(*callback, function);
  }
  /// Only on callbacks that override `hook`.
  template <class Function>
  void each_callback(LogScope scope, Hook hook, Function function) {
    const auto& list = overriding_[static_cast<size_t>(hook)];
    if (list.empty()) return;
    ScopeGuard guard(*this, scope);
    for (Callback* callback : list) call(*callback, function);
  }
  /// Sets the meaning of `log()` during its lifetime.
  class ScopeGuard {
   public:
    ScopeGuard(Run& run, LogScope scope) : run_(run), before_(run.scope_) { run.scope_ = scope; }
    ~ScopeGuard() { run_.scope_ = before_; }
    ScopeGuard(const ScopeGuard&) = delete;
    ScopeGuard& operator=(const ScopeGuard&) = delete;

   private:
    Run& run_;
    LogScope before_;
  };

  /// Sorts callbacks by phase and determines which batch hooks are overridden.
  void set_callbacks(std::vector<std::shared_ptr<Callback>> list);
  /// Throws a ConfigError if two callbacks keep state under one key. Called after their setup: a state may need it.
  void check_state_keys();
  /// Everything is prepared; the loops begin.
  void start() {
    setting_up = false;
    doing_ = nullptr;
    agreement.start(collectives(), options.agree_every.value);
  }
  /// Makes the handles of `plan`.
  void make_handles();
  /// Resets counters, loaders and gradients to between two training batches, after an exception in the middle of one.
  void rewind_to_batch_start();
  /// What the run is doing, for display: stage, epoch, batch with its shapes, step.
  std::string describe_position() const;
  /// The same with the hook or callback that is running: where an exception came from.
  std::string place_of_failure() const;
  /// Whether a user's hook is running, or was left by an exception.
  bool in_hook() const { return in_callback_ || doing_; }
  /// Writes what was requested, at the one place where requests are acted on. Non-finite weights are not saved.
  void act_on_checkpoint_requests();
  /// For a copy of the module that the strategy has on another device.
  ReplicaContext& replica_context(const LightningModule& replica);
  /// How much loggers have written, for a checkpoint; in a validation of a fit, what they had written before it.
  StateTree logger_states() const;
  /// The `metrics` of a checkpoint.
  StateTree published_metrics() const;
  /// The origin recorded in a checkpoint of this run.
  CheckpointOrigin origin() const;
  /// Where a row written now belongs.
  RowPlace row_place() const;
  /// Sends a row to all loggers.
  void send_metrics(Metrics metrics, RowPlace place);
  void send_metrics(Metrics metrics) { send_metrics(std::move(metrics), row_place()); }
  /// A batch has ended: starts a row of the step window if it is due, and writes older ones. With `force` it is due,
  /// and all are written.
  void flush_step_metrics(RunningStage stage, bool force);
  /// Synchronizes with the device, and throws if an exchange between ranks has failed on it: its results are undefined
  /// then.
  void check_exchanges();
  /// Checks that ranks that must be identical are, or throws a DistributedError with the difference; at most once per
  /// step. All ranks must call it.
  void check_same_ranks();
  /// Checks that all ranks have made the same number of steps, which decides what comes next. In manual optimization
  /// each could step on its own condition. All ranks must call it. The exchange is read after the next batch, so it
  /// blocks no rank.
  void check_same_steps();
  /// Reads it now, before steps decide; `with_all`: all ranks are here, and report their steps.
  void settle_same_steps(bool with_all);

  TrainerOptions options;
  TrainerComponents components;
  Progress progress_;
  std::shared_ptr<LightningModule> model;
  /// Copies of the module on other devices, with their run contexts.
  std::vector<std::pair<std::shared_ptr<LightningModule>, std::unique_ptr<ReplicaContext>>> replicas;
  DataSource data;
  std::shared_ptr<Strategy> strategy;
  std::vector<std::shared_ptr<Callback>> callbacks;
  std::vector<std::shared_ptr<Logger>> active_loggers;
  OptimizerPlan plan;
  std::map<RunningStage, StageLoaders> stages;
  LogStore logs;
  CheckpointStore checkpoints{*this};
  StepRows rows{*this};
  SeenCounts seen{*this};
  NonFinitePolicy finite{*this};
  RankConsensus agreement;
  bool failed_alone = false;  ///< an exception that the other ranks know nothing of: nothing is exchanged any more
  std::filesystem::path run_dir;
  ConfigNode resolved_config;
  std::string config_hash;
  bool checkpoints_allowed = true;

  std::optional<int64_t> epoch_limit;
  int64_t step_limit = -1;
  int64_t accumulation_ = 1;
  bool validation_runs = false;
  std::optional<std::string> stop_reason;

  // The current window of gradient accumulation: its batches, how many of them are done, how many of these had a loss.
  int64_t window_length = 0, window_done = 0, window_losses = 0;
  bool manual = false;                  ///< manual optimization
  bool in_training_step = false;        ///< where manual backward and step may be called
  bool manual_sync = true;              ///< manual_backward exchanges gradients between ranks
  StepActions* step_actions = nullptr;  ///< while the run trains
  bool tokens_unknown = false;          ///< num_tokens gave nothing: the module's class was not known before
  bool stepped = false;                 ///< an optimizer made a step in this batch
  bool adds_gradients = false;          ///< this batch's backward has begun
  bool muted = false;                   ///< log() does nothing: a closure is evaluated again
  bool validation_pending = false;      ///< a validation is due or under way
  int64_t validated_at = -1;            ///< training batches before the last validation that ended
  double fit_started_s = 0;
  double waited_for_data_s = 0;
  mutable bool counts_data_wait = false;  ///< set on first use: reading the clock costs 0.1 µs each time
  std::vector<std::unique_ptr<OptimizerHandle>> handles;
  std::unordered_set<const void*> parameters_at_start;  ///< the module's, when its optimizers were created
  /// Recreates the loaders of a stage.
  std::function<void(RunningStage)> reload_loaders;

  // Written by the loops.
  int64_t batch_idx_ = 0;
  double batch_samples_ = 1;
  int64_t loader_idx_ = 0, loader_count_ = 1;
  Batch batch_;                       ///< the training batch under way
  bool setting_up = true;             ///< the loops have not begun
  bool in_batch_ = false;             ///< still true after an exception in it
  const Batch* evaluated_ = nullptr;  ///< the batch of an evaluation under way
  /// The part of a batch's work being executed, such as `training_step`; still set after an exception.
  const char* doing_ = nullptr;
  std::optional<int64_t> reading_;  ///< the batch being requested from a loader; still set after an exception
  std::string failed_in_;           ///< the place of an exception that has left an evaluation
  RunningStage stage_ = RunningStage::train;
  bool sanity_checking_ = false;
  int64_t logged_step_ = 0;                 ///< global step of the last step row
  int64_t captured_batches = 0;             ///< launched as graphs
  std::optional<std::string> not_captured;  ///< why others were not
  int64_t evaluation_batches_ = 0;          ///< that ended, over the run
  /// Where the current or interrupted validation of a fit began. A resume repeats it from there.
  struct ValidationStart {
    int64_t evaluation_batches = 0;
    StateTree loggers;
  };
  std::optional<ValidationStart> validation_start_;
  std::string device_text;  ///< `1 × cpu`, for checkpoints
  int64_t threads = 1;

 private:
  template <class Function>
  void call(Callback& callback, Function& function) {
    const Callback* const outer = std::exchange(in_callback_, &callback);
    function(callback);
    in_callback_ = outer;
  }
  template <class Value>
  void log_value(std::string_view name, const Value& value, const LogOptions& log_options);

  void step_optimizer(OptimizerHandle& handle, const Closure& closure);

  TrainerFn fn_;
  std::unique_ptr<PendingReduction> same_steps_;
  int64_t same_ranks_at_ = -1;  ///< the step at which ranks were last compared
  LogScope scope_ = LogScope::forbidden;
  const Callback* in_callback_ = nullptr;  // still set after an exception
  std::vector<std::vector<Callback*>> overriding_;
};

}  // namespace fulgur::detail
