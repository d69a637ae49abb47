#include "fulgur/strategies/mixed_precision.h"

#include "fulgur/core/autocast.h"
#include "fulgur/core/registry.h"
#include "half_formats.h"

namespace fulgur {
namespace {

struct AutocastGuard final : Precision::Guard {
  AutocastGuard(at::DeviceType device, at::ScalarType dtype) : autocast(device, dtype) {}
  Autocast autocast;
};

}  // namespace

MixedPrecision::MixedPrecision(at::ScalarType dtype, std::optional<GradScaler::Options> scaler) : dtype_(dtype) {
  if (scaler) scaler_.emplace(*scaler);
}

void MixedPrecision::set_device(at::Device device) {
  detail::check_half_format(name(), dtype_, device);
  device_ = device;
  if (scaler_) scaler_->set_device(device);
}

// Weights stay in float32, where small updates are not lost; autocast makes the copies.
void MixedPrecision::convert_module(torch::nn::Module&) {}
void MixedPrecision::convert_input(Batch&) {}

std::unique_ptr<Precision::Guard> MixedPrecision::forward_guard() { return std::make_unique<AutocastGuard>(device_.type(), dtype_); }

Tensor MixedPrecision::scale(const Tensor& loss) { return scaler_ ? scaler_->scale(loss) : loss; }

void MixedPrecision::unscale(Optimizer& optimizer) {
  if (scaler_) scaler_->unscale(optimizer, optimizer.gradients());
}

std::optional<Tensor> MixedPrecision::found_inf(const Optimizer& optimizer) const { return scaler_ ? scaler_->found_inf(optimizer) : std::nullopt; }

void MixedPrecision::update() {
  if (scaler_) scaler_->update();
}

void MixedPrecision::abandon_step() {
  if (scaler_) scaler_->abandon_step();
}

std::optional<Tensor> MixedPrecision::loss_scale() const { return scaler_ ? std::optional(scaler_->scale_tensor()) : std::nullopt; }

void MixedPrecision::check() {
  if (scaler_) detail::warn_of_small_scale(*scaler_);
}

StateTree MixedPrecision::state() const {
  StateTree state;
  if (scaler_) state["scaler"] = scaler_->state();
  return state;
}

void MixedPrecision::load_state(const StateTree& state) {
  // A checkpoint of a run without a scaler: it begins anew.
  if (scaler_ && state.contains("scaler")) scaler_->load_state(state.at("scaler"));
}

[[maybe_unused]] static const bool registered =
    Registry<Precision>::add<Float16Mixed>("16-mixed", "Weights in float32, computation in float16 where it gains; the loss is scaled.") &&
    Registry<Precision>::add<BFloat16Mixed>("bf16-mixed", "Weights in float32, computation in bfloat16 where it gains.") &&
    Registry<Precision>::alias("16", "16-mixed") && Registry<Precision>::alias("bf16", "bf16-mixed");

}  // namespace fulgur
