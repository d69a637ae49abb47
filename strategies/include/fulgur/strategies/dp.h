#pragma once

#include <optional>

#include "fulgur/core/contracts/single_process_strategy.h"
#include "fulgur/nn/replica_tensors.h"

namespace fulgur {

/// Data parallel in one process: each batch is split into chunks, one per device, which copies of the module compute at
/// the same time. Losses, weighted by their share of the samples, and gradients are added up on the first device, which
/// has the optimizers. The step is therefore that of one device on the whole batch, except for layers that combine
/// samples (BatchNorm uses the statistics of its chunk, and the first device's buffers are kept).
class FULGUR_API DPStrategy final : public SingleProcessStrategy {
 public:
  std::string name() const override { return "dp"; }
  DeviceUse device_use() const override { return DeviceUse::all; }
  /// Throws a ConfigError for the CPU, which is one device, for several nodes and for sync_batchnorm.
  void configure(StrategySetup setup) override;
  /// Throws a ConfigError for a module with manual optimization.
  void attach(LightningModule& module) override;
  size_t replicas_wanted() const override { return devices_.size() - 1; }
  void attach_replicas(LightningModule& module, const std::vector<std::shared_ptr<LightningModule>>& replicas) override;
  bool splits_batches() const override { return devices_.size() > 1; }
  /// Chunk sizes differ by at most one sample; a batch with fewer samples than devices uses only as many devices.
  std::vector<MicroBatch> split(LightningModule& module, const Batch& batch, RunningStage stage) override;
  void run_parts(size_t parts, const std::function<void(size_t)>& work) override;
  void backward(LightningModule& module, const Tensor& loss, GradSync sync, const BackwardOptions& options) override;
  void teardown() noexcept override;

 private:
  std::vector<std::shared_ptr<LightningModule>> replicas_;
  std::optional<nn::ReplicaTensors> tensors_;
};

}  // namespace fulgur
