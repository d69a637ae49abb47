#pragma once

#include <optional>

#include "fulgur/core/precision.h"
#include "fulgur/strategies/grad_scaler.h"

namespace fulgur {

/// What the half precisions share: a device that must have the format, and a loss that may be scaled.
class FULGUR_API ScaledPrecision : public Precision {
 public:
  /// float16 on a CPU is emulated, 47 times slower than float32: a warning.
  void set_device(at::Device device) override;
  Tensor scale(const Tensor& loss) override;
  void unscale(Optimizer& optimizer) override;
  std::optional<Tensor> found_inf(const Optimizer& optimizer) const override;
  void update() override;
  void abandon_step() override;
  std::optional<Tensor> loss_scale() const override;
  /// The scale's; a checkpoint of a run without one lets it begin anew.
  StateTree state() const override;
  void load_state(const StateTree& state) override;

 protected:
  ScaledPrecision(at::ScalarType dtype, std::optional<GradScaler::Options> scaler);
  at::ScalarType dtype() const { return dtype_; }
  at::Device device() const { return device_; }
  bool scales() const { return scaler_.has_value(); }

 private:
  at::ScalarType dtype_;
  at::Device device_{at::kCPU};
  std::optional<GradScaler> scaler_;
};

}  // namespace fulgur
