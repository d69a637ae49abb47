#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/core/contracts/run_context.h"

namespace fulgur {

/// A RunContext that forwards its calls to another one, which must outlive it: the base of contexts that override only
/// a few functions.
class FULGUR_API ForwardingRunContext : public RunContext {
 public:
  explicit ForwardingRunContext(RunContext& to) : to_(to) {}

  const Progress& progress() const override { return to_.progress(); }
  int64_t batch_idx() const override { return to_.batch_idx(); }
  Tensor sample_indices() const override { return to_.sample_indices(); }
  TrainerFn fn() const override { return to_.fn(); }
  RunningStage stage() const override { return to_.stage(); }
  bool sanity_checking() const override { return to_.sanity_checking(); }
  bool fast_dev_run() const override { return to_.fast_dev_run(); }
  std::optional<int64_t> num_batches(RunningStage stage) const override { return to_.num_batches(stage); }
  const RunExtent& extent() const override { return to_.extent(); }
  RunMeters& meters() override { return to_.meters(); }
  PublishedCheckpoints& published_checkpoints() override { return to_.published_checkpoints(); }
  const LoggedMetrics& logged_metrics() const override { return to_.logged_metrics(); }
  ManualOptimization& manual_optimization() override { return to_.manual_optimization(); }
  RunWeights& run_weights() override { return to_.run_weights(); }
  int64_t rank() const override { return to_.rank(); }
  int64_t world_size() const override { return to_.world_size(); }
  at::Device device() const override { return to_.device(); }
  std::vector<at::Device> devices() const override { return to_.devices(); }
  Collectives& collectives() override { return to_.collectives(); }
  LightningModule& module() override { return to_.module(); }
  std::vector<OptimizerHandle*> optimizer_handles() override { return to_.optimizer_handles(); }
  const OptimizerPlan& optimizer_plan() const override { return to_.optimizer_plan(); }
  std::optional<double> metric(std::string_view name) override { return to_.metric(name); }
  std::optional<double> monitored_metric(std::string_view name) override { return to_.monitored_metric(name); }
  void log(std::string_view name, const Tensor& value, const LogOptions& options) override {
    to_.log(name, value, options);
  }
  void log(std::string_view name, double value, const LogOptions& options) override { to_.log(name, value, options); }
  void log(std::string_view name, Metric& metric, const LogOptions& options) override {
    to_.log(name, metric, options);
  }
  void log_media(const MediaRecord& record) override { to_.log_media(record); }
  void log_artifact(const std::filesystem::path& path) override { to_.log_artifact(path); }
  void print(std::string_view line) override { to_.print(line); }
  const std::vector<std::shared_ptr<Logger>>& loggers() const override { return to_.loggers(); }
  std::filesystem::path log_dir() const override { return to_.log_dir(); }
  std::filesystem::path checkpoint_dir() const override { return to_.checkpoint_dir(); }
  std::optional<std::filesystem::path> last_checkpoint() const override { return to_.last_checkpoint(); }
  std::optional<std::filesystem::path> best_checkpoint() const override { return to_.best_checkpoint(); }
  double elapsed_s() const override { return to_.elapsed_s(); }
  double fit_time_s() const override { return to_.fit_time_s(); }
  void set_accumulation(int64_t count) override { to_.set_accumulation(count); }
  int64_t accumulation() const override { return to_.accumulation(); }
  void request_stop(std::string reason) override { to_.request_stop(std::move(reason)); }
  bool stop_requested() const override { return to_.stop_requested(); }
  uint64_t request_checkpoint(CheckpointRequest request) override { return to_.request_checkpoint(std::move(request)); }
  void judge_steps(StepJudge& judge) override { to_.judge_steps(judge); }

 private:
  RunContext& to_;
};

}  // namespace fulgur
