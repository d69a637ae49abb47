#pragma once

#include <optional>

#include "fulgur/strategies/scaled_precision.h"

namespace fulgur {

/// Weights in float32, the forward under autocast in a half format. float16 has a small range, so its loss is scaled.
class FULGUR_API MixedPrecision : public ScaledPrecision {
 public:
  std::string name() const override { return dtype() == at::kHalf ? "16-mixed" : "bf16-mixed"; }
  void convert_module(torch::nn::Module& module) override;
  void convert_input(Batch& batch) override;
  std::unique_ptr<Guard> forward_guard() override;
  /// False if the loss is scaled, since the scale could change between two evaluations of the loss.
  bool allows_closure() const override { return !scales(); }

 protected:
  using ScaledPrecision::ScaledPrecision;
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
