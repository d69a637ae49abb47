#pragma once

#include <ATen/ops/zeros.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/core/contracts/metric.h"
#include "fulgur/core/contracts/optimizer.h"
#include "fulgur/core/contracts/run_context.h"
#include "fulgur/core/text/errors.h"

namespace fulgur::test {

/// A run without loops, for tests of what asks a RunContext: a test sets the answers, and reads what was logged,
/// requested and released. One rank unless `collectives_of_ranks` is set.
class FakeRunContext : public RunContext,
                       public RunExtent,
                       public RunMeters,
                       public PublishedCheckpoints,
                       public LoggedMetrics,
                       public ManualOptimization,
                       public RunWeights {
 public:
  struct Logged {
    std::string name;
    double value;
  };

  Progress now;
  int64_t batch = 0;
  TrainerFn function = TrainerFn::fit;
  RunningStage running_stage = RunningStage::train;
  bool is_sanity_check = false, is_fast_dev_run = false, validates = true, validates_at_epoch_ends = true;
  bool logs_this_step = true, counts_tokens = false;
  std::map<RunningStage, std::optional<int64_t>> batches;
  std::optional<int64_t> steps, epochs;
  Collectives* collectives_of_ranks = nullptr;
  std::map<std::string, double, std::less<>> metrics;
  std::map<std::string, RunningStage, std::less<>> metric_stages;  ///< of those that are not `running_stage`'s
  LightningModule* of_module = nullptr;
  OptimizerPlan plan;
  std::vector<std::shared_ptr<Logger>> run_loggers;
  std::filesystem::path folder;
  std::optional<std::filesystem::path> last, best;
  bool owns_all = true;  ///< whether all checkpoints are this run's
  double seconds = 0, waited_for_data = 0;
  int64_t accumulated = 1;
  Tensor skipped = at::zeros({}, at::kDouble);

  std::vector<Logged> logged;
  std::vector<std::string> printed;
  std::vector<MediaRecord> media;
  std::vector<std::filesystem::path> artifacts;
  std::optional<std::string> stop_reason;
  std::vector<std::pair<uint64_t, CheckpointRequest>> requests;
  std::vector<StepJudge*> judges;
  std::vector<std::pair<std::filesystem::path, std::string>> released;  ///< with their owners

  const Progress& progress() const override { return now; }
  int64_t batch_idx() const override { return batch; }
  TrainerFn fn() const override { return function; }
  RunningStage stage() const override { return running_stage; }
  bool sanity_checking() const override { return is_sanity_check; }
  bool fast_dev_run() const override { return is_fast_dev_run; }
  std::optional<int64_t> num_batches(RunningStage stage) const override {
    const auto found = batches.find(stage);
    return found == batches.end() ? std::nullopt : found->second;
  }
  int64_t num_loaders(RunningStage stage) const override { return batches.contains(stage) ? 1 : 0; }
  std::optional<int64_t> estimated_steps() const override { return steps; }
  std::optional<int64_t> max_epochs() const override { return epochs; }
  std::optional<int64_t> max_steps() const override { return steps; }
  std::optional<double> progress_fraction() const override {
    if (!steps || *steps == 0) return std::nullopt;
    return static_cast<double>(now.global_step) / static_cast<double>(*steps);
  }
  bool has_token_counts() const override { return counts_tokens; }
  void count_each_batch() override {}
  bool has_validation() const override { return validates; }
  bool validates_each_epoch_end() const override { return validates_at_epoch_ends; }
  const RunExtent& extent() const override { return *this; }
  RunMeters& meters() override { return *this; }
  PublishedCheckpoints& published_checkpoints() override { return *this; }
  const LoggedMetrics& logged_metrics() const override { return *this; }
  ManualOptimization& manual_optimization() override { return *this; }
  RunWeights& run_weights() override { return *this; }
  Tensor skipped_steps() const override { return skipped; }
  std::optional<std::string> cannot_update_batch_norm() const override { return std::nullopt; }
  void will_update_batch_norm() override {}
  std::vector<std::string> update_batch_norm() override { return {}; }
  int64_t rank() const override { return collectives_of_ranks ? collectives_of_ranks->rank() : 0; }
  int64_t world_size() const override { return collectives_of_ranks ? collectives_of_ranks->world_size() : 1; }
  at::Device device() const override { return at::kCPU; }
  Collectives& collectives() override { return collectives_of_ranks ? *collectives_of_ranks : alone_; }
  void sync_gradients(Optimizer&) override {}
  LightningModule& module() override {
    if (!of_module) throw Error("[test] FakeRunContext has no module: set of_module.");
    return *of_module;
  }
  std::vector<OptimizerHandle*> optimizer_handles() override { return {}; }
  const OptimizerPlan& optimizer_plan() const override { return plan; }
  void manual_backward(const Tensor&, const BackwardOptions&) override {
    throw Error("[test] FakeRunContext has no training step.");
  }
  void set_manual_sync(bool) override {}
  int64_t master_weight_bytes() const override { return 0; }
  void unscale_gradients(Optimizer&) override {}
  std::optional<double> metric(std::string_view name) override {
    const auto found = metrics.find(name);
    return found == metrics.end() ? std::nullopt : std::optional(found->second);
  }
  std::optional<RunningStage> metric_stage(std::string_view name) const override {
    if (const auto found = metric_stages.find(name); found != metric_stages.end()) return found->second;
    return metrics.contains(name) ? std::optional(running_stage) : std::nullopt;
  }
  std::vector<std::string> metric_names() const override {
    std::vector<std::string> names;
    for (const auto& [name, value] : metrics) names.push_back(name);
    return names;
  }
  Metrics progress_metrics() const override { return {metrics.begin(), metrics.end()}; }
  void log(std::string_view name, const Tensor& value, const LogOptions&) override {
    logged.push_back({std::string(name), value.item<double>()});
  }
  void log(std::string_view name, double value, const LogOptions&) override {
    logged.push_back({std::string(name), value});
  }
  void log(std::string_view name, Metric& metric, const LogOptions&) override {
    logged.push_back({std::string(name), metric.compute().item<double>()});
  }
  void log_media(const MediaRecord& record) override {
    check_media(record);
    media.push_back(record);
  }
  void log_artifact(const std::filesystem::path& path) override { artifacts.push_back(path); }
  void print(std::string_view line) override { printed.emplace_back(line); }
  const std::vector<std::shared_ptr<Logger>>& loggers() const override { return run_loggers; }
  std::filesystem::path log_dir() const override { return folder; }
  std::filesystem::path checkpoint_dir() const override { return folder / "checkpoints"; }
  std::optional<std::filesystem::path> last_checkpoint() const override { return last; }
  std::optional<std::filesystem::path> best_checkpoint() const override { return best; }
  double elapsed_s() const override { return seconds; }
  double fit_time_s() const override { return seconds; }
  double data_wait_s() const override { return waited_for_data; }
  bool is_logging_step() const override { return logs_this_step; }
  std::string precision_name() const override { return "32-true"; }
  void set_accumulation(int64_t count) override { accumulated = count; }
  int64_t accumulation() const override { return accumulated; }
  void request_stop(std::string reason) override {
    if (!stop_reason) stop_reason = std::move(reason);
  }
  bool stop_requested() const override { return stop_reason.has_value(); }
  uint64_t request_checkpoint(CheckpointRequest request) override {
    requests.emplace_back(requests.size() + 1, std::move(request));
    return requests.back().first;
  }
  void judge_steps(StepJudge& judge) override { judges.push_back(&judge); }
  bool owns_checkpoint(const std::filesystem::path&) override { return owns_all; }
  void release_checkpoint(const std::filesystem::path& path, std::string_view owner) override {
    released.emplace_back(path, owner);
  }

 private:
  SingleProcessCollectives alone_;
};

}  // namespace fulgur::test
