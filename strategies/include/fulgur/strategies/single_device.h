#pragma once

#include "fulgur/core/strategy.h"

namespace fulgur {

/// One process on one device.
class FULGUR_API SingleDeviceStrategy final : public Strategy {
 public:
  std::string name() const override { return "single_device"; }
  /// Throws a ConfigError for more than one device.
  void configure(StrategySetup setup) override;
  at::Device device() const override { return device_; }
  int64_t rank() const override { return 0; }
  int64_t world_size() const override { return 1; }
  Collectives& collectives() override { return collectives_; }
  Precision& precision() override { return *precision_; }
  void attach(LightningModule& module) override;
  void backward(LightningModule& module, const Tensor& loss, GradSync sync, const BackwardOptions& options) override;

  std::unique_ptr<GraphCapture> make_graph_capture() override;

 private:
  at::Device device_{at::kCPU};
  std::shared_ptr<Precision> precision_;
  SingleProcessCollectives collectives_;
};

}  // namespace fulgur
