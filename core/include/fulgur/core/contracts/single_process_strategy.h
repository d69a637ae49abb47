#pragma once

#include <memory>
#include <vector>

#include "fulgur/core/contracts/strategy.h"

namespace fulgur {

/// Base of strategies with one process. Your class overrides `name()` and the functions that it implements differently,
/// such as `backward` or `optimizer_step`; docs/custom_components.md has an example.
class FULGUR_API SingleProcessStrategy : public Strategy {
 public:
  /// Takes the devices and the precision. Throws a ConfigError for more devices than `device_use()` drives, or for
  /// several nodes.
  void configure(StrategySetup setup) override;
  at::Device device() const override { return devices_.front(); }
  std::vector<at::Device> devices() const override { return devices_; }
  int64_t rank() const override { return 0; }
  int64_t world_size() const override { return 1; }
  Collectives& collectives() override { return collectives_; }
  Precision& precision() override { return *precision_; }
  /// Converts the module to the precision and moves it to `device()`.
  void attach(LightningModule& module) override;
  /// Calls the module's `backward`.
  void backward(LightningModule& module, const Tensor& loss, GradSync sync, const BackwardOptions& options) override;

 protected:
  std::vector<at::Device> devices_{at::kCPU};
  std::shared_ptr<Precision> precision_;

 private:
  SingleProcessCollectives collectives_;
};

}  // namespace fulgur
