#include "fulgur/strategies/mixed_precision.h"

#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/device/autocast.h"

namespace fulgur {
namespace {

struct AutocastGuard final : Precision::Guard {
  AutocastGuard(at::DeviceType device, at::ScalarType dtype) : autocast(device, dtype) {}
  Autocast autocast;
};

}  // namespace

// Weights stay in float32, where small updates are not lost; autocast makes the copies.
void MixedPrecision::convert_module(torch::nn::Module&) {}
void MixedPrecision::convert_input(Batch&) {}

std::unique_ptr<Precision::Guard> MixedPrecision::forward_guard() {
  return std::make_unique<AutocastGuard>(device().type(), dtype());
}

[[maybe_unused]] static const bool registered_mixed_precision =
    Registry<Precision>::add<Float16Mixed>(
        "16-mixed", "Weights in float32, computation in float16 where it helps; the loss is scaled.") &&
    Registry<Precision>::add<BFloat16Mixed>("bf16-mixed",
                                            "Weights in float32, computation in bfloat16 where it helps.") &&
    Registry<Precision>::alias("16", "16-mixed") && Registry<Precision>::alias("bf16", "bf16-mixed");

}  // namespace fulgur
