#pragma once

#include <memory>

#include "fulgur/core/contracts/single_process_strategy.h"
#include "fulgur/nn/replica_tensors.h"
#include "fulgur/strategies/placement.h"

namespace fulgur {

namespace detail {
class DeviceUtilization;
}

/// Base of the strategies that place each submodule of a module on its own device or devices. A batch is split into
/// micro-batches, which run forward one after the other and backward together, so that a device computes one of them
/// while the next device computes another (GPipe, Huang et al. 2019). GPUs overlap in both directions, since the host
/// does not wait for them; virtual devices overlap only in backward. Submodules without a placement, and the batch, are
/// on the first device.
class FULGUR_API PlacedStrategy : public SingleProcessStrategy {
 public:
  ~PlacedStrategy() override;
  DeviceUse device_use() const override { return DeviceUse::all; }
  void configure(StrategySetup setup) override;
  /// Throws a ConfigError for a name that is not a placed submodule, for a device that was not chosen, for tensors of a
  /// module placed by hand that are on other devices, and for micro-batches with manual optimization.
  void attach(LightningModule& module) override;
  void start_training(LightningModule& module, const std::vector<Optimizer*>& optimizers) override;
  void before_forward(LightningModule& module, GradSync sync) override;
  bool splits_batches() const override { return micro_batches_ > 1; }
  std::vector<MicroBatch> split(LightningModule& module, const Batch& batch, RunningStage stage) override;
  /// Runs the parts in order. Throws an Error that names modules, parameters and devices if an operation gets tensors
  /// of two devices.
  void run_parts(size_t parts, const std::function<void(size_t)>& work) override;
  void backward(LightningModule& module, const Tensor& loss, GradSync sync, const BackwardOptions& options) override;
  void drop_gradients_of_copies() noexcept override;
  /// Fraction of the time since `start_training` during which each device computed.
  std::string device_report() const override;
  void teardown() noexcept override;

 protected:
  PlacedStrategy(Placement placement, int64_t micro_batches);

 private:
  void apply_placement(LightningModule& module);
  void check_placed_by_hand(const LightningModule& module) const;
  void copy_values();

  Placement placement_;
  int64_t micro_batches_;
  LightningModule* module_ = nullptr;
  std::vector<std::unique_ptr<nn::ReplicaTensors>> groups_;  // the replicas of submodules on several devices
  std::unique_ptr<detail::DeviceUtilization> busy_;
};

/// Computes submodules on different devices. Either a map (`placement`) places `nn::Placed` members, which move their
/// inputs, or the user places submodules in `configure_model()`, and then nothing is moved.
class FULGUR_API ModelParallelStrategy final : public PlacedStrategy {
 public:
  struct Options {
    Placement placement;
    int64_t micro_batches = 1;
    void fields(Fields& f);
  };
  /// Throws a ConfigError for a submodule on several devices, which needs `hybrid`.
  explicit ModelParallelStrategy(Options options);
  std::string name() const override { return "model_parallel"; }
};

/// Computes submodules on groups of devices, data-parallel within a group. Outputs flow from group to group.
class FULGUR_API HybridStrategy final : public PlacedStrategy {
 public:
  struct Options {
    Placement placement;
    int64_t micro_batches = 1;
    void fields(Fields& f);
  };
  /// Throws a ConfigError without a placement.
  explicit HybridStrategy(Options options);
  std::string name() const override { return "hybrid"; }
};

}  // namespace fulgur
