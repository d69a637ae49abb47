#pragma once

#include <optional>

#include "fulgur/core/precision.h"
#include "fulgur/strategies/grad_scaler.h"

namespace fulgur {

/// Weights in float32, the forward under autocast in a half format. float16 has a small range, so its loss is scaled.
class FULGUR_API MixedPrecision : public Precision {
 public:
  std::string name() const override { return dtype_ == at::kHalf ? "16-mixed" : "bf16-mixed"; }
  /// float16 on a CPU is emulated, 47 times slower than float32: a warning.
  void set_device(at::Device device) override;
  void convert_module(torch::nn::Module& module) override;
  void convert_input(Batch& batch) override;
  std::unique_ptr<Guard> forward_guard() override;
  Tensor scale(const Tensor& loss) override;
  void unscale(Optimizer& optimizer) override;
  std::optional<Tensor> found_inf(const Optimizer& optimizer) const override;
  void update() override;
  void abandon_step() override;
  std::optional<Tensor> loss_scale() const override;
  void check() override;
  /// The scale may change between two evaluations of a loss.
  bool allows_closure() const override { return !scaler_; }
  StateTree state() const override;
  void load_state(const StateTree& state) override;

 protected:
  MixedPrecision(at::ScalarType dtype, std::optional<GradScaler::Options> scaler);

 private:
  at::ScalarType dtype_;
  at::Device device_{at::kCPU};
  std::optional<GradScaler> scaler_;
};

/// `16-mixed`.
class FULGUR_API Float16Mixed final : public MixedPrecision {
 public:
  using Options = GradScaler::Options;
  explicit Float16Mixed(Options options = {}) : MixedPrecision(at::kHalf, options) {}
};

/// `bf16-mixed`.
class FULGUR_API BFloat16Mixed final : public MixedPrecision {
 public:
  BFloat16Mixed() : MixedPrecision(at::kBFloat16, std::nullopt) {}
};

}  // namespace fulgur
