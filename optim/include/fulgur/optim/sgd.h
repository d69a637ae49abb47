#pragma once

#include "fulgur/optim/fused_optimizer.h"

namespace fulgur {

/// Stochastic gradient descent with momentum on ATen's fused kernel.
class FULGUR_API Sgd final : public FusedOptimizer {
 public:
  struct FULGUR_API Options {
    double lr = 1e-3;
    double momentum = 0.0;
    double weight_decay = 0.0;
    bool nesterov = false;
    void fields(Fields& f);
  };
  explicit Sgd(Options options);
  double default_lr() const override { return options_.lr; }
  std::string name() const override { return "SGD"; }

 protected:
  std::vector<std::string> state_names() const override;
  bool counts_steps() const override { return false; }
  void update(Bucket& bucket, const std::optional<Tensor>& found_inf) override;

 private:
  Options options_;
};

}  // namespace fulgur
