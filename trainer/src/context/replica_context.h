#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "fulgur/core/contracts/forwarding_run_context.h"

namespace fulgur::detail {

class LogStore;
class MetricStore;
struct RunState;

/// The view that a copy of the module on another device has of the run while it computes a part of a batch, on its own
/// thread. It reads the same values as the run's module. The values that it logs are kept, and enter the run after the
/// step, in the order of the parts. Requests for checkpoints, media, artifacts, prints and changes of accumulation are
/// ignored: the module, which computes the same step, makes them.
class ReplicaContext final : public ForwardingRunContext,
                             private RunMeters,
                             private PublishedCheckpoints,
                             private LoggedMetrics,
                             private ManualOptimization {
 public:
  /// `context` is the context of the run.
  ReplicaContext(RunState& run, RunContext& context, const LogStore& logs, MetricStore& metrics, at::Device device);

  void set_module(LightningModule& module) { module_ = &module; }
  /// Of the next part.
  void set_samples(int64_t samples) { samples_ = samples; }
  /// Passes everything logged and requested since the last call to the run.
  void flush_to_run();

  RunMeters& meters() override { return *this; }
  PublishedCheckpoints& published_checkpoints() override { return *this; }
  const LoggedMetrics& logged_metrics() const override { return *this; }
  ManualOptimization& manual_optimization() override { return *this; }
  int64_t rank() const override { return 0; }
  int64_t world_size() const override { return 1; }
  at::Device device() const override { return device_; }
  std::vector<at::Device> devices() const override { return {device_}; }
  Collectives& collectives() override { return collectives_; }
  LightningModule& module() override { return *module_; }
  void manual_backward(const Tensor& loss, const BackwardOptions& options) override;
  void sync_gradients(Optimizer& optimizer) override { context_.manual_optimization().sync_gradients(optimizer); }
  void unscale_gradients(Optimizer&) override {}
  bool has_token_counts() const override { return context_.meters().has_token_counts(); }
  void count_each_batch() override { context_.meters().count_each_batch(); }
  bool is_logging_step() const override { return context_.meters().is_logging_step(); }
  std::string precision_name() const override { return context_.meters().precision_name(); }
  int64_t master_weight_bytes() const override { return 0; }
  void set_manual_sync(bool) override {}
  /// The value that was written last.
  std::optional<double> metric(std::string_view name) override;
  std::vector<std::string> metric_names() const override;
  Metrics progress_metrics() const override { return {}; }
  std::optional<RunningStage> metric_stage(std::string_view name) const override;
  void log(std::string_view name, const Tensor& value, const LogOptions& options) override;
  void log(std::string_view name, double value, const LogOptions& options) override;
  void log(std::string_view name, Metric& metric, const LogOptions& options) override;
  void log_media(const MediaRecord&) override {}
  void log_artifact(const std::filesystem::path&) override {}
  void print(std::string_view) override {}
  double data_wait_s() const override { return 0; }
  void set_accumulation(int64_t) override {}
  void request_stop(std::string reason) override;
  bool stop_requested() const override;
  uint64_t request_checkpoint(CheckpointRequest) override { return 0; }
  bool owns_checkpoint(const std::filesystem::path&) override { return false; }
  void release_checkpoint(const std::filesystem::path&, std::string_view) override {}

 private:
  struct Logged {
    std::string name;
    std::variant<Tensor, double, Metric*> value;
    LogOptions options;
    double samples;
  };
  RunState& run_;
  RunContext& context_;
  const LogStore& logs_;
  MetricStore& metrics_;
  at::Device device_;
  LightningModule* module_ = nullptr;
  SingleProcessCollectives collectives_;
  int64_t samples_ = 1;
  std::vector<Logged> logged_;
  std::optional<std::string> stop_reason_;
};

}  // namespace fulgur::detail
