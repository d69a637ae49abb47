#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "process/run_folder.h"
#include "run/batch_norm_update.h"
#include "run/services.h"
#include "saving/checkpoint_store.h"

namespace fulgur::detail {

/// The view that modules and callbacks have of a run, and their requests to it.
class LiveRunContext final : public RunContext,
                             private RunExtent,
                             private RunMeters,
                             private PublishedCheckpoints,
                             private LoggedMetrics,
                             private ManualOptimization,
                             private RunWeights {
 public:
  LiveRunContext(RunState& state, Services& services) : state_(state), services_(services) {}

  const Progress& progress() const override { return state_.counters; }
  int64_t batch_idx() const override { return state_.position.batch_idx; }
  Tensor sample_indices() const override;
  TrainerFn fn() const override { return state_.fn; }
  RunningStage stage() const override { return state_.position.stage; }
  bool sanity_checking() const override { return state_.position.sanity_checking; }
  bool fast_dev_run() const override { return state_.fast_dev_run(); }
  std::optional<int64_t> num_batches(RunningStage stage) const override;
  int64_t num_loaders(RunningStage stage) const override;
  std::optional<int64_t> estimated_steps() const override;
  std::optional<int64_t> max_epochs() const override { return state_.options.epoch_limit; }
  bool has_validation() const override { return state_.validation.runs; }
  std::optional<int64_t> max_steps() const override {
    return state_.options.step_limit >= 0 ? std::optional(state_.options.step_limit) : std::nullopt;
  }
  std::optional<double> progress_fraction() const override;
  void count_each_batch() override { services_.seen.count_each_batch(); }
  bool has_token_counts() const override {
    return ComponentAccess::overridden(*state_.model).has(Hook::num_tokens) && !state_.tokens_unknown;
  }
  bool validates_each_epoch_end() const override {
    return state_.options.check_val_every_n_epoch == 1 && state_.options.val_check_interval.at_epoch_end();
  }
  const RunExtent& extent() const override { return *this; }
  RunMeters& meters() override { return *this; }
  PublishedCheckpoints& published_checkpoints() override { return *this; }
  const LoggedMetrics& logged_metrics() const override { return *this; }
  ManualOptimization& manual_optimization() override { return *this; }
  RunWeights& run_weights() override { return *this; }
  Tensor skipped_steps() const override { return services_.finite.skipped_steps(); }
  std::unique_ptr<WholeParameters> whole_parameters() override { return state_.strategy->whole_parameters(); }
  Tensor gather(const Tensor& parameter) override;
  std::vector<int64_t> whole_sizes(const Tensor& parameter) const override {
    return state_.strategy->whole_sizes(parameter);
  }
  StateTree optimizer_state(const Optimizer& optimizer) override { return state_.strategy->optimizer_state(optimizer); }
  std::optional<std::string> cannot_update_batch_norm() const override {
    return detail::cannot_update_batch_norm(state_);
  }
  void will_update_batch_norm() override { state_.updates_batch_norm = true; }
  std::vector<std::string> update_batch_norm() override { return detail::update_batch_norm(state_, services_); }
  int64_t rank() const override { return state_.strategy->rank(); }
  int64_t world_size() const override { return state_.strategy->world_size(); }
  at::Device device() const override { return state_.strategy->device(); }
  std::vector<at::Device> devices() const override { return state_.strategy->devices(); }
  Collectives& collectives() override { return state_.strategy->collectives(); }
  LightningModule& module() override { return *state_.model; }
  std::vector<OptimizerHandle*> optimizer_handles() override { return state_.optimizer_handles(); }
  const OptimizerPlan& optimizer_plan() const override { return state_.plan; }
  void sync_gradients(Optimizer& optimizer) override { state_.strategy->sync_gradients(optimizer); }
  void manual_backward(const Tensor& loss, const BackwardOptions& options) override {
    state_.step.manual_backward(loss, options);
  }
  void unscale_gradients(Optimizer& optimizer) override { state_.strategy->precision().unscale(optimizer); }
  bool divides_parameters() const override { return state_.strategy->divides_parameters(); }
  int64_t master_weight_bytes() const override { return state_.strategy->precision().extra_bytes(); }
  void set_manual_sync(bool on) override { state_.step.manual_sync = on; }
  /// With several ranks, only values in written rows, which are the same on all of them.
  std::optional<double> metric(std::string_view name) override;
  std::optional<double> monitored_metric(std::string_view name) override;
  std::optional<RunningStage> metric_stage(std::string_view name) const override {
    return services_.logs.stage_of(name);
  }
  std::vector<std::string> metric_names() const override { return services_.logs.names(); }
  Metrics progress_metrics() const override { return services_.logs.progress_values(); }
  void log(std::string_view name, const Tensor& value, const LogOptions& options) override;
  void log(std::string_view name, double value, const LogOptions& options) override;
  void log(std::string_view name, Metric& metric, const LogOptions& options) override;
  void log_media(const MediaRecord& record) override;
  void log_artifact(const std::filesystem::path& path) override;
  void print(std::string_view line) override;
  const std::vector<std::shared_ptr<Logger>>& loggers() const override { return state_.active_loggers; }
  std::filesystem::path log_dir() const override { return state_.run_dir; }
  std::filesystem::path checkpoint_dir() const override { return checkpoint_folder_of(state_.run_dir); }
  std::optional<std::filesystem::path> last_checkpoint() const override { return services_.checkpoints.last(); }
  std::optional<std::filesystem::path> best_checkpoint() const override { return services_.checkpoints.best(); }
  double elapsed_s() const override { return services_.consensus.clock_s(); }
  double fit_time_s() const override { return state_.counters.fit_time_s + elapsed_s() - state_.times.fit_started_s; }
  double data_wait_s() const override {
    state_.times.counts_data_wait = true;
    return state_.times.waited_for_data_s;
  }
  bool is_logging_step() const override { return state_.is_logging_step(); }
  std::string precision_name() const override { return state_.strategy->precision().name(); }
  void set_accumulation(int64_t count) override;
  int64_t accumulation() const override { return state_.window.target; }
  void request_stop(std::string reason) override { state_.request_stop(std::move(reason)); }
  bool stop_requested() const override { return state_.stop_reason.has_value(); }
  uint64_t request_checkpoint(CheckpointRequest request) override {
    return services_.checkpoints.request(std::move(request));
  }
  void judge_steps(StepJudge& judge) override;
  bool owns_checkpoint(const std::filesystem::path& path) override { return services_.checkpoints.owns(path); }
  void release_checkpoint(const std::filesystem::path& path, std::string_view owner) override {
    services_.checkpoints.release(path, owner);
  }

 private:
  /// Whether log() does anything here.
  bool logs() const;
  /// Whether `function`, which passes something else to the loggers, does anything here. Throws during setup.
  bool sends(const char* function) const;
  /// What a captured step would do only once keeps it from being captured. False if it was already done for this step.
  bool begin_effect();
  template <class Value>
  void log_value(std::string_view name, const Value& value, const LogOptions& options);

  RunState& state_;
  Services& services_;
};

}  // namespace fulgur::detail
