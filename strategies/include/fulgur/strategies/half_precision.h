#pragma once

#include <optional>

#include "fulgur/strategies/master_weights.h"
#include "fulgur/strategies/scaled_precision.h"

namespace fulgur {

/// Weights, gradients and computation in a half format. With `master_weights` the optimizer steps float32 copies (apex
/// O2); with `keep_norm_fp32` the weights and statistics of normalisation layers stay float32.
class FULGUR_API HalfPrecision : public ScaledPrecision {
 public:
  std::string name() const override { return dtype() == at::kHalf ? "16-true" : "bf16-true"; }
  /// Throws a ConfigError that names layers that the device cannot run with float32 weights on a half input.
  void convert_module(torch::nn::Module& module) override;
  /// Converts floating-point tensors to the half format; integers and bytes are unchanged.
  void convert_input(Batch& batch) override;
  void prepare_optimizer(Optimizer& optimizer) override;
  void unscale(Optimizer& optimizer) override;
  void step(Optimizer& optimizer, const std::optional<Tensor>& found_inf) override;
  void update() override;
  void abandon_step() override;
  /// False with master weights, which receive their gradients once per step.
  bool allows_closure() const override { return !masters_; }
  int64_t extra_bytes() const override { return masters_ ? masters_->bytes() : 0; }
  /// The copies that optimizers step; null without `master_weights`.
  MasterWeights* master_weights() { return masters_ ? &*masters_ : nullptr; }
  StateTree state() const override;
  StateTree state_in_parts(std::vector<TensorPart>& parts) const override;
  void load_state(const StateTree& state) override;

 protected:
  struct Choices {
    bool master_weights = false, keep_norm_fp32 = false;
    std::optional<GradScaler::Options> scaler;
  };
  HalfPrecision(at::ScalarType dtype, Choices choices);

 private:
  bool keep_norm_fp32_;
  std::optional<MasterWeights> masters_;
};

/// `16-true`.
class FULGUR_API Float16True final : public HalfPrecision {
 public:
  struct FULGUR_API Options {
    bool master_weights = false, keep_norm_fp32 = false, loss_scaling = false;
    GradScaler::Options scaler;
    void fields(Fields& f);
  };
  /// Throws a ConfigError for loss_scaling without master weights.
  explicit Float16True(const Options& options);
};

/// `bf16-true`.
class FULGUR_API BFloat16True final : public HalfPrecision {
 public:
  struct FULGUR_API Options {
    bool master_weights = false, keep_norm_fp32 = false;
    void fields(Fields& f);
  };
  explicit BFloat16True(const Options& options);
};

}  // namespace fulgur
