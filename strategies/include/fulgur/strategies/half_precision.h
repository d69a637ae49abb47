#pragma once

#include <optional>

#include "fulgur/core/precision.h"
#include "fulgur/strategies/grad_scaler.h"
#include "fulgur/strategies/master_weights.h"

namespace fulgur {

/// Weights, gradients and computation in a half format. With `master_weights` the optimizer steps float32 copies (apex O2);
/// with `keep_norm_fp32` the weights and statistics of normalisation layers stay float32.
class FULGUR_API HalfPrecision : public Precision {
 public:
  std::string name() const override { return dtype_ == at::kHalf ? "16-true" : "bf16-true"; }
  void set_device(at::Device device) override;
  /// Throws a ConfigError that names layers which the device cannot run with float32 weights on a half input.
  void convert_module(torch::nn::Module& module) override;
  /// Floating tensors in the half format; integers and bytes as they are.
  void convert_input(Batch& batch) override;
  void prepare_optimizer(Optimizer& optimizer) override;
  Tensor scale(const Tensor& loss) override;
  void unscale(Optimizer& optimizer) override;
  std::optional<Tensor> found_inf(const Optimizer& optimizer) const override;
  void step(Optimizer& optimizer, const std::optional<Tensor>& found_inf) override;
  void update() override;
  void abandon_step() override;
  std::optional<Tensor> loss_scale() const override;
  void check() override;
  /// Master weights take their gradients once per step.
  bool allows_closure() const override { return !masters_; }
  int64_t extra_bytes() const override { return masters_ ? masters_->bytes() : 0; }
  StateTree state() const override;
  void load_state(const StateTree& state) override;

 protected:
  struct Choices {
    bool master_weights = false, keep_norm_fp32 = false;
    std::optional<GradScaler::Options> scaler;
  };
  HalfPrecision(at::ScalarType dtype, Choices choices);

 private:
  at::ScalarType dtype_;
  bool keep_norm_fp32_;
  at::Device device_{at::kCPU};
  std::optional<MasterWeights> masters_;
  std::optional<GradScaler> scaler_;
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
