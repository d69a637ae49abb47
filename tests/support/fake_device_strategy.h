#pragma once

#include "fulgur/strategies/single_device.h"
#include "support/fake_device.h"

namespace fulgur::test {

/// Says that it computes on the fake device, and computes on the CPU. For modules that leave batches where they are.
struct OnFakeDevice : Strategy {
  std::string name() const override { return "fake"; }
  void configure(StrategySetup setup) override { real.configure(std::move(setup)); }
  at::Device device() const override { return FakeDevice::device(); }
  int64_t rank() const override { return 0; }
  int64_t world_size() const override { return 1; }
  Collectives& collectives() override { return real.collectives(); }
  Precision& precision() override { return real.precision(); }
  void attach(LightningModule& module) override { real.attach(module); }
  void backward(LightningModule& module, const Tensor& loss, GradSync sync, const BackwardOptions& options) override {
    real.backward(module, loss, sync, options);
  }
  void optimizer_step(Optimizer& optimizer, const Closure& closure, const std::optional<Tensor>& found_inf) override {
    real.optimizer_step(optimizer, closure, found_inf);
  }
  SingleDeviceStrategy real;
};

}  // namespace fulgur::test
