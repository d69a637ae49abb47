#pragma once

#include "fulgur/optim/fused_optimizer.h"

namespace fulgur {

/// Lion (Chen et al. 2023, arXiv 2302.06675, algorithm 2) on ATen's foreach operations. Torch has no such class.
///     θ ← θ − lr·(sign(β₁m + (1−β₁)g) + λθ);  m ← β₂m + (1−β₂)g
/// It needs a learning rate 3 to 10 times lower than AdamW's, and a weight decay higher by the same factor.
class FULGUR_API Lion final : public FusedOptimizer {
 public:
  struct FULGUR_API Options {
    double lr = 1e-4;
    std::vector<double> betas{0.9, 0.99};
    double weight_decay = 0.0;
    bool maximize = false;
    ParameterRules parameters = {};
    void fields(Fields& f);
  };
  /// Creates it with its parameters attached, like `torch::optim::Adam(groups, options)`.
  Lion(std::vector<ParamGroup> groups, Options options) : Lion(std::move(options)) { attach(std::move(groups)); }
  explicit Lion(Options options);
  double default_lr() const override { return options_.lr; }
  std::string name() const override { return "Lion"; }
  bool is_elementwise() const override { return true; }
  std::optional<double> weight_decay(const ParamGroup& group) const override {
    return group.weight_decay.value_or(options_.weight_decay);
  }
  std::optional<double> momentum() const override { return options_.betas[0]; }
  void set_momentum(double momentum) override { options_.betas[0] = momentum; }

 protected:
  std::vector<std::string> state_names(const Tensor&) const override { return {"exp_avg"}; }
  bool counts_steps(const Tensor&) const override { return false; }
  bool takes_found_inf(const Tensor&) const override { return false; }
  bool takes_device_rates() const override { return true; }
  void update(Bucket& bucket, const std::optional<Tensor>& found_inf) override;

 private:
  Options options_;
};

}  // namespace fulgur
