#include "fulgur/strategies/scaled_precision.h"

#include "fulgur/core/device/accelerator.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace {

void check_half_format(const std::string& precision, at::ScalarType dtype, at::Device device) {
  if (device.is_cpu()) {
    if (dtype == at::kHalf)
      log::warn("strategies.float16_on_cpu", cat("precision ", precision,
                                                 " on a CPU: float16 is emulated there, and a linear layer takes 47 "
                                                 "times as long as in float32. Use bf16-mixed on a CPU"));
    return;
  }
  const Accelerator* accelerator = find_accelerator(c10::DeviceTypeName(device.type(), /*lower_case=*/true));
  if (!accelerator) return;
  if (const std::string reason = accelerator->cannot_compute_in(dtype, device.index()); !reason.empty())
    throw ConfigError(cat("[strategies.precision] precision ", precision, " does not run on ", device.str(), ": ",
                          reason, ". Use ", dtype == at::kBFloat16 ? "16-mixed or 32-true" : "32-true", "."));
}

}  // namespace

ScaledPrecision::ScaledPrecision(at::ScalarType dtype, std::optional<GradScaler::Options> scaler) : dtype_(dtype) {
  if (scaler) scaler_.emplace(*scaler);
}

void ScaledPrecision::set_device(at::Device device) {
  check_half_format(name(), dtype_, device);
  device_ = device;
  if (scaler_) scaler_->set_device(device);
}

Tensor ScaledPrecision::scale(const Tensor& loss) { return scaler_ ? scaler_->scale(loss) : loss; }

void ScaledPrecision::unscale(Optimizer& optimizer) {
  if (scaler_) scaler_->unscale(optimizer, optimizer.gradients());
}

std::optional<Tensor> ScaledPrecision::found_inf(const Optimizer& optimizer) const {
  return scaler_ ? scaler_->found_inf(optimizer) : std::nullopt;
}

void ScaledPrecision::update() {
  if (scaler_) scaler_->update();
}

void ScaledPrecision::abandon_step() {
  if (scaler_) scaler_->abandon_step();
}

std::optional<Tensor> ScaledPrecision::loss_scale() const {
  return scaler_ ? std::optional(scaler_->scale_tensor()) : std::nullopt;
}

StateTree ScaledPrecision::state() const {
  StateTree state;
  if (scaler_) state["scaler"] = scaler_->state();
  return state;
}

void ScaledPrecision::load_state(const StateTree& state) {
  if (scaler_ && state.contains("scaler")) scaler_->load_state(state.at("scaler"));
}

}  // namespace fulgur
