#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/core/run_context.h"

namespace fulgur {

/// A RunContext that forwards its calls to another one, which must outlive it: the base of contexts that override only
/// a few functions.
class FULGUR_API ForwardingRunContext : public RunContext {
 public:
  explicit ForwardingRunContext(RunContext& to) : to_(to) {}

  const Progress& progress() const override { return to_.progress(); }
  int64_t batch_idx() const override { return to_.batch_idx(); }
  TrainerFn fn() const override { return to_.fn(); }
  RunningStage stage() const override { return to_.stage(); }
  bool sanity_checking() const override { return to_.sanity_checking(); }
  bool fast_dev_run() const override { return to_.fast_dev_run(); }
  std::optional<int64_t> num_batches(RunningStage stage) const override { return to_.num_batches(stage); }
  int64_t num_loaders(RunningStage stage) const override { return to_.num_loaders(stage); }
  std::optional<int64_t> estimated_steps() const override { return to_.estimated_steps(); }
  std::optional<int64_t> max_epochs() const override { return to_.max_epochs(); }
  std::optional<int64_t> max_steps() const override { return to_.max_steps(); }
  std::optional<double> progress_fraction() const override { return to_.progress_fraction(); }
  bool has_token_counts() const override { return to_.has_token_counts(); }
  void count_each_batch() override { to_.count_each_batch(); }
  bool has_validation() const override { return to_.has_validation(); }
  bool validates_each_epoch_end() const override { return to_.validates_each_epoch_end(); }
  int64_t rank() const override { return to_.rank(); }
  int64_t world_size() const override { return to_.world_size(); }
  at::Device device() const override { return to_.device(); }
  std::vector<at::Device> devices() const override { return to_.devices(); }
  Collectives& collectives() override { return to_.collectives(); }
  void sync_gradients(Optimizer& optimizer) override { to_.sync_gradients(optimizer); }
  LightningModule& module() override { return to_.module(); }
  std::vector<Optimizer*> optimizers() override { return to_.optimizers(); }
  std::vector<OptimizerHandle*> optimizer_handles() override { return to_.optimizer_handles(); }
  std::vector<LrScheduler*> lr_schedulers() override { return to_.lr_schedulers(); }
  const OptimizerPlan& optimizer_plan() const override { return to_.optimizer_plan(); }
  void manual_backward(const Tensor& loss, const BackwardOptions& options) override {
    to_.manual_backward(loss, options);
  }
  void unscale_gradients(Optimizer& optimizer) override { to_.unscale_gradients(optimizer); }
  int64_t master_weight_bytes() const override { return to_.master_weight_bytes(); }
  void set_manual_sync(bool on) override { to_.set_manual_sync(on); }
  std::optional<double> metric(std::string_view name) override { return to_.metric(name); }
  std::optional<double> monitored_metric(std::string_view name) override { return to_.monitored_metric(name); }
  std::optional<RunningStage> metric_stage(std::string_view name) const override { return to_.metric_stage(name); }
  std::vector<std::string> metric_names() const override { return to_.metric_names(); }
  Metrics progress_metrics() override { return to_.progress_metrics(); }
  void log(std::string_view name, const Tensor& value, const LogOptions& options) override {
    to_.log(name, value, options);
  }
  void log(std::string_view name, double value, const LogOptions& options) override { to_.log(name, value, options); }
  void print(std::string_view line) override { to_.print(line); }
  const ConfigNode& hparams() const override { return to_.hparams(); }
  const std::vector<std::shared_ptr<Logger>>& loggers() const override { return to_.loggers(); }
  std::filesystem::path log_dir() const override { return to_.log_dir(); }
  std::filesystem::path checkpoint_dir() const override { return to_.checkpoint_dir(); }
  std::optional<std::filesystem::path> last_checkpoint() const override { return to_.last_checkpoint(); }
  std::optional<std::filesystem::path> best_checkpoint() const override { return to_.best_checkpoint(); }
  double elapsed_s() const override { return to_.elapsed_s(); }
  double fit_time_s() const override { return to_.fit_time_s(); }
  double data_wait_s() const override { return to_.data_wait_s(); }
  bool is_logging_step() const override { return to_.is_logging_step(); }
  std::string precision_name() const override { return to_.precision_name(); }
  void set_accumulation(int64_t count) override { to_.set_accumulation(count); }
  int64_t accumulation() const override { return to_.accumulation(); }
  void request_stop(std::string reason) override { to_.request_stop(std::move(reason)); }
  bool stop_requested() const override { return to_.stop_requested(); }
  uint64_t request_checkpoint(CheckpointRequest request) override { return to_.request_checkpoint(std::move(request)); }
  void release_checkpoint(const std::filesystem::path& path, std::string_view owner) override {
    to_.release_checkpoint(path, owner);
  }

 private:
  RunContext& to_;
};

}  // namespace fulgur
