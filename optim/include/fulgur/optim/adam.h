#pragma once

#include "fulgur/optim/fused_optimizer.h"

namespace fulgur {

/// Adam (Kingma and Ba 2015, arXiv 1412.6980) on ATen's fused kernel. It equals torch.optim.Adam.
///     g ← g + λθ;  m ← β₁m + (1−β₁)g;  v ← β₂v + (1−β₂)g²;  θ ← θ − lr · m/(1−β₁ᵗ) / (√(v/(1−β₂ᵗ)) + ε)
class FULGUR_API Adam : public FusedOptimizer {
 public:
  struct FULGUR_API Options {
    double lr = 1e-3;
    std::vector<double> betas{0.9, 0.999};
    double eps = 1e-8;
    double weight_decay = 0.0;
    bool amsgrad = false;
    bool maximize = false;
    ParameterRules parameters = {};
    void fields(Fields& f);
  };
  /// Creates it with its parameters attached, like `torch::optim::Adam(groups, options)`.
  Adam(std::vector<ParamGroup> groups, Options options) : Adam(std::move(options)) { attach(std::move(groups)); }
  explicit Adam(Options options);
  double default_lr() const override { return options_.lr; }
  std::string name() const override { return "Adam"; }
  bool is_elementwise() const override { return true; }
  std::optional<double> weight_decay(const ParamGroup& group) const override {
    return group.weight_decay.value_or(options_.weight_decay);
  }
  std::optional<double> momentum() const override { return options_.betas[0]; }
  void set_momentum(double momentum) override { options_.betas[0] = momentum; }

  bool keeps_bits_of_short_dtypes() const override { return true; }

 protected:
  std::vector<std::string> state_names(const Tensor& parameter) const override;
  void update(Bucket& bucket, const std::optional<Tensor>& found_inf) override;
  bool takes_device_rates() const override { return true; }
  bool takes_device_momentum() const override { return true; }
  /// The kernel's arguments with a beta on the device; weight decay is already done.
  struct Moved {
    std::vector<Tensor> gradients;
    Tensor lr;
    double beta;
  };
  Moved move_beta(Bucket& bucket, const std::optional<Tensor>& found_inf) const;
  /// Whether weight decay is separate from the gradient (AdamW).
  virtual bool decays_apart() const { return false; }
  Options options_;
};

/// AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101) on ATen's fused kernel. It equals torch.optim.AdamW. Like Adam,
/// but with decoupled weight decay: θ ← θ − lr·λ·θ.
class FULGUR_API AdamW final : public Adam {
 public:
  struct FULGUR_API Options {
    double lr = 1e-3;
    std::vector<double> betas{0.9, 0.999};
    double eps = 1e-8;
    double weight_decay = 0.01;
    bool amsgrad = false;
    bool maximize = false;
    ParameterRules parameters = {};
    void fields(Fields& f);
  };
  /// Creates it with its parameters attached, like `torch::optim::AdamW(groups, options)`.
  AdamW(std::vector<ParamGroup> groups, Options options) : AdamW(std::move(options)) { attach(std::move(groups)); }
  explicit AdamW(Options options);
  std::string name() const override { return "AdamW"; }

 protected:
  bool decays_apart() const override { return true; }
};

}  // namespace fulgur
