#pragma once

#include "fulgur/optim/fused_optimizer.h"

namespace fulgur {

/// RMSprop (Tieleman and Hinton 2012, lecture 6.5) on ATen's foreach operations. It equals torch.optim.RMSprop.
///     g ← g + λθ;  v ← αv + (1−α)g²;  a = √v + ε, centered a = √(v − ḡ²) + ε with ḡ ← αḡ + (1−α)g;
///     θ ← θ − lr·g/a, with momentum b ← μb + g/a, θ ← θ − lr·b
class FULGUR_API RMSprop final : public FusedOptimizer {
 public:
  struct FULGUR_API Options {
    double lr = 1e-2;
    double alpha = 0.99;
    double eps = 1e-8;
    double weight_decay = 0.0;
    double momentum = 0.0;
    bool centered = false;
    bool maximize = false;
    ParameterRules parameters = {};
    void fields(Fields& f);
  };
  /// Creates it with its parameters attached, like `torch::optim::RMSprop(groups, options)`.
  RMSprop(std::vector<ParamGroup> groups, Options options) : RMSprop(std::move(options)) { attach(std::move(groups)); }
  explicit RMSprop(Options options)
      : FusedOptimizer(options.parameters), options_(std::move(options)), has_momentum_(options_.momentum != 0) {}
  double default_lr() const override { return options_.lr; }
  std::string name() const override { return "RMSprop"; }
  bool is_elementwise() const override { return true; }
  std::optional<double> weight_decay(const ParamGroup& group) const override {
    return group.weight_decay.value_or(options_.weight_decay);
  }
  std::optional<double> momentum() const override;
  void set_momentum(double momentum) override;

 protected:
  std::vector<std::string> state_names(const Tensor& parameter) const override;
  bool takes_found_inf(const Tensor&) const override { return false; }
  bool takes_device_rates() const override { return true; }
  void update(Bucket& bucket, const std::optional<Tensor>& found_inf) override;

 private:
  Options options_;
  bool has_momentum_;
};

}  // namespace fulgur
