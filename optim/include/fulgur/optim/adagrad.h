#pragma once

#include "fulgur/optim/fused_optimizer.h"

namespace fulgur {

/// Adagrad (Duchi, Hazan and Singer 2011) on ATen's fused kernel. It equals torch.optim.Adagrad.
///     g ← g + λθ;  s ← s + g²;  θ ← θ − lr/(1 + (t−1)·lr_decay) · g / (√s + ε)
class FULGUR_API Adagrad final : public FusedOptimizer {
 public:
  struct FULGUR_API Options {
    double lr = 1e-2;
    double lr_decay = 0.0;
    double weight_decay = 0.0;
    double initial_accumulator_value = 0.0;
    double eps = 1e-10;
    bool maximize = false;
    ParameterRules parameters = {};
    void fields(Fields& f);
  };
  /// Creates it with its parameters attached, like `torch::optim::Adagrad(groups, options)`.
  Adagrad(std::vector<ParamGroup> groups, Options options) : Adagrad(std::move(options)) { attach(std::move(groups)); }
  explicit Adagrad(Options options) : FusedOptimizer(options.parameters), options_(std::move(options)) {}
  double default_lr() const override { return options_.lr; }
  std::string name() const override { return "Adagrad"; }
  bool is_elementwise() const override { return true; }
  std::optional<double> weight_decay(const ParamGroup& group) const override {
    return group.weight_decay.value_or(options_.weight_decay);
  }

  bool keeps_bits_of_short_dtypes() const override { return true; }

 protected:
  std::vector<std::string> state_names(const Tensor&) const override { return {"sum"}; }
  double initial_state() const override { return options_.initial_accumulator_value; }
  void update(Bucket& bucket, const std::optional<Tensor>& found_inf) override;
  bool takes_device_rates() const override { return true; }

 private:
  Options options_;
};

}  // namespace fulgur
