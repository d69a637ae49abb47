#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpointing/checkpoint_store.h"
#include "fulgur/checkpoint/checkpoint_folder.h"
#include "run/rank_checks.h"
#include "run/rank_consensus.h"
#include "run/run_folder.h"
#include "run/run_state.h"
#include "run/step_rows.h"

namespace fulgur::detail {

/// A run as the loops work on it: its state, the services that act on it, and the RunContext that modules and callbacks
/// see of it.
class Run final : public RunContext, public RunState, private CheckpointHost {
 public:
  Run(const TrainerOptions& options, const TrainerComponents& components, TrainerFn fn);

  // ---- RunContext ----
  const Progress& progress() const override { return counters; }
  int64_t batch_idx() const override { return position.batch_idx; }
  TrainerFn fn() const override { return fn_; }
  RunningStage stage() const override { return position.stage; }
  bool sanity_checking() const override { return position.sanity_checking; }
  bool fast_dev_run() const override { return options.fast_dev_run.batches > 0; }
  std::optional<int64_t> num_batches(RunningStage stage) const override;
  int64_t num_loaders(RunningStage stage) const override;
  std::optional<int64_t> estimated_steps() const override;
  std::optional<int64_t> max_epochs() const override { return options.epoch_limit; }
  bool has_validation() const override { return validation.runs; }
  std::optional<int64_t> max_steps() const override {
    return options.step_limit >= 0 ? std::optional(options.step_limit) : std::nullopt;
  }
  std::optional<double> progress_fraction() const override;
  void count_each_batch() override { seen.count_each_batch(); }
  bool has_token_counts() const override {
    return ComponentAccess::overridden(*model).has(Hook::num_tokens) && !step.tokens_unknown;
  }
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
  void set_manual_sync(bool on) override { step.manual_sync = on; }
  /// With several ranks only what was written, which is the same on all of them.
  std::optional<double> metric(std::string_view name) override;
  std::optional<double> monitored_metric(std::string_view name) override;
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
  double fit_time_s() const override { return counters.fit_time_s + elapsed_s() - times.fit_started_s; }
  double data_wait_s() const override {
    times.counts_data_wait = true;
    return times.waited_for_data_s;
  }
  bool is_logging_step() const override {
    return options.log_every_n_steps > 0 && counters.global_step - logged_step >= options.log_every_n_steps;
  }
  std::string precision_name() const override { return strategy->precision().name(); }
  void set_accumulation(int64_t count) override;
  int64_t accumulation() const override { return window.target; }
  void request_stop(std::string reason) override;
  bool stop_requested() const override { return stop_reason.has_value(); }
  uint64_t request_checkpoint(CheckpointRequest request) override { return checkpoints.request(std::move(request)); }
  void release_checkpoint(const std::filesystem::path& path, std::string_view owner) override {
    checkpoints.release(path, owner);
  }

  // ---- used by the loops ----
  /// Moves the batch to the device through the transfer hooks, and converts it to the run's memory format.
  void batch_to_device(Batch& batch, int64_t loader_idx);
  /// Its two parts.
  void transfer(Batch& batch, int64_t loader_idx);
  void to_memory_format(Batch& batch) const;
  /// Throws a ConfigError if two callbacks keep state under one key. Called after their setup: a state may need it.
  void check_state_keys();
  /// Everything is prepared; the loops begin.
  void start();
  /// Makes the handles of `plan`.
  void make_handles();
  /// Resets counters, loaders and gradients to between two training batches, after an exception in the middle of one.
  void rewind_to_batch_start();
  /// Writes what was requested, at the one place where requests are acted on. Non-finite weights are not saved.
  void act_on_checkpoint_requests();
  /// Does what the policy for NaN has decided. True if the step proceeds.
  bool carry_out(NonFiniteDecision decision);
  /// For a copy of the module that the strategy has on another device.
  ReplicaContext& replica_context(const LightningModule& replica);
  /// A batch has ended: starts a row of the step window if it is due, and writes older ones. With `force` it is due,
  /// and all are written.
  void flush_step_metrics(RunningStage stage, bool force);

  RankConsensus agreement;
  RankChecks ranks{*this};
  StepRows rows;
  CheckpointStore checkpoints;

 private:
  // ---- CheckpointHost ----
  CheckpointContent collect(bool weights_only) override;
  std::function<void(CheckpointContent&)> late_values() override;
  void write_rows() override { rows.settle(/*and_act=*/false); }
  void when_rows_are_written(std::function<void()> then) override { rows.when_written(std::move(then)); }
  void check_ranks() override;
  Tensor weight_norm() override { return finite.weight_norm(); }
  std::optional<std::string> bad_weight() override { return finite.bad_weight(); }
  bool take_save_done() override { return agreement.take_save_done(); }
  bool allows_saves() const override { return checkpoints_allowed; }
  bool is_alone() const override { return failed_alone; }
  void published(const CheckpointInfo& info) override;
  void failed(const CheckpointInfo& info, const CheckpointError& error) override;

  template <class Value>
  void log_value(std::string_view name, const Value& value, const LogOptions& log_options);
  void step_optimizer(OptimizerHandle& handle, const Closure& closure);

  TrainerFn fn_;
};

}  // namespace fulgur::detail
