#pragma once

#include <optional>

#include "fulgur/core/contracts/precision.h"
#include "fulgur/strategies/grad_scaler.h"

namespace fulgur {

/// Base of the half precisions: requires a device that supports the format, and may scale the loss.
class FULGUR_API ScaledPrecision : public Precision {
 public:
  /// Warns if float16 is used on a CPU: it is emulated there, 47 times slower than float32.
  void set_device(at::Device device) override;
  Tensor scale(const Tensor& loss) override;
  void unscale(Optimizer& optimizer) override;
  std::optional<Tensor> found_inf(const Optimizer& optimizer) const override;
  void update() override;
  void abandon_step() override;
  std::optional<Tensor> loss_scale() const override;
  /// The scale's state; if a checkpoint has none, the scale starts from its initial value.
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
