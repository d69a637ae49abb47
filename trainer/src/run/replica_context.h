#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "fulgur/core/run_context.h"

namespace fulgur::detail {

class Run;

/// What a copy of the module on another device sees of the run while it computes a part of a batch, on a thread of its
/// own. It reads what the run's own module reads. What it logs is kept and goes into the run behind the step, in the
/// order of the parts. Checkpoints, prints and the length of accumulation are the module's own to ask for, which
/// computes the same step.
class ReplicaContext final : public RunContext {
 public:
  ReplicaContext(Run& run, at::Device device) : run_(run), device_(device) {}

  void set_module(LightningModule& module) { module_ = &module; }
  /// Of the part that comes next.
  void set_samples(int64_t samples) { samples_ = samples; }
  /// Gives the run what was logged and asked for since the last call.
  void flush_to_run();

  const Progress& progress() const override;
  int64_t batch_idx() const override;
  TrainerFn fn() const override;
  RunningStage stage() const override;
  bool sanity_checking() const override;
  bool fast_dev_run() const override;
  std::optional<int64_t> num_batches(RunningStage stage) const override;
  int64_t num_loaders(RunningStage stage) const override;
  std::optional<int64_t> estimated_steps() const override;
  std::optional<int64_t> max_epochs() const override;
  std::optional<int64_t> max_steps() const override;
  std::optional<double> progress_fraction() const override;
  bool has_token_counts() const override;
  void count_each_batch() override;
  bool has_validation() const override;
  bool validates_each_epoch_end() const override;
  int64_t rank() const override { return 0; }
  int64_t world_size() const override { return 1; }
  at::Device device() const override { return device_; }
  Collectives& collectives() override { return collectives_; }
  LightningModule& module() override { return *module_; }
  std::vector<Optimizer*> optimizers() override;
  std::vector<OptimizerHandle*> optimizer_handles() override;
  std::vector<LrScheduler*> lr_schedulers() override;
  const OptimizerPlan& optimizer_plan() const override;
  /// Throws: a copy has no optimizer.
  void sync_gradients(Optimizer& optimizer) override;
  void manual_backward(const Tensor& loss, const BackwardOptions& options) override;
  void set_manual_sync(bool) override {}
  /// As it was last written.
  std::optional<double> metric(std::string_view name) override;
  std::optional<RunningStage> metric_stage(std::string_view name) const override;
  std::vector<std::string> metric_names() const override;
  Metrics progress_metrics() override { return {}; }
  void log(std::string_view name, const Tensor& value, const LogOptions& options) override;
  void log(std::string_view name, double value, const LogOptions& options) override;
  void print(std::string_view) override {}
  const ConfigNode& hparams() const override;
  const std::vector<std::shared_ptr<Logger>>& loggers() const override;
  std::filesystem::path log_dir() const override;
  std::filesystem::path checkpoint_dir() const override;
  std::optional<std::filesystem::path> last_checkpoint() const override;
  std::optional<std::filesystem::path> best_checkpoint() const override;
  double elapsed_s() const override;
  double fit_time_s() const override;
  double data_wait_s() const override { return 0; }
  bool is_logging_step() const override;
  std::string precision_name() const override;
  void set_accumulation(int64_t) override {}
  int64_t accumulation() const override;
  void request_stop(std::string reason) override;
  bool stop_requested() const override;
  uint64_t request_checkpoint(CheckpointRequest) override { return 0; }
  void release_checkpoint(const std::filesystem::path&, std::string_view) override {}

 private:
  struct Logged {
    std::string name;
    std::variant<Tensor, double> value;
    LogOptions options;
    double samples;
  };
  Run& run_;
  at::Device device_;
  LightningModule* module_ = nullptr;
  SingleProcessCollectives collectives_;
  int64_t samples_ = 1;
  std::vector<Logged> logged_;
  std::optional<std::string> stop_reason_;
};

}  // namespace fulgur::detail
