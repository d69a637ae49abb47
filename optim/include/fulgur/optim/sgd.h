#pragma once

#include "fulgur/optim/fused_optimizer.h"

namespace fulgur {

/// Stochastic gradient descent with momentum on ATen's fused kernel. It equals torch.optim.SGD.
///     g ← g + λθ;  b ← μb + (1−τ)g (the first time b ← g);  θ ← θ − lr·b, with Nesterov θ ← θ − lr·(g + μb)
/// With dampening τ it steps each parameter separately and keeps an update count in addition to Python's state.
class FULGUR_API SGD final : public FusedOptimizer {
 public:
  struct FULGUR_API Options {
    double lr = 1e-3;
    double momentum = 0.0;
    double weight_decay = 0.0;
    bool nesterov = false;
    double dampening = 0.0;
    bool maximize = false;
    ParameterRules parameters = {};
    void fields(Fields& f);
  };
  /// Creates it with its parameters attached, like `torch::optim::SGD(groups, options)`.
  SGD(std::vector<ParamGroup> groups, Options options) : SGD(std::move(options)) { attach(std::move(groups)); }
  explicit SGD(Options options);
  double default_lr() const override { return options_.lr; }
  std::string name() const override { return "SGD"; }
  bool is_elementwise() const override { return true; }
  std::optional<double> weight_decay(const ParamGroup& group) const override {
    return group.weight_decay.value_or(options_.weight_decay);
  }
  std::optional<double> momentum() const override;
  void set_momentum(double momentum) override;

  bool keeps_bits_of_short_dtypes() const override { return !is_dampened_; }

 protected:
  std::vector<std::string> state_names(const Tensor& parameter) const override;
  bool counts_steps(const Tensor& parameter) const override;
  bool takes_found_inf(const Tensor&) const override { return !is_dampened_; }
  void update(Bucket& bucket, const std::optional<Tensor>& found_inf) override;
  bool takes_device_rates() const override { return true; }
  bool takes_device_momentum() const override { return has_momentum_ && !is_dampened_; }

 private:
  void update_moved(Bucket& bucket, const std::optional<Tensor>& found_inf);
  void update_dampened(Bucket& bucket);
  Options options_;
  bool has_momentum_, is_dampened_;
};

}  // namespace fulgur
