#pragma once

#include "fulgur/optim/fused_optimizer.h"

namespace fulgur {

/// Adam (Kingma and Ba 2015) on ATen's fused kernel; weight decay is added to the gradient.
class FULGUR_API Adam : public FusedOptimizer {
 public:
  struct FULGUR_API Options {
    double lr = 1e-3;
    std::vector<double> betas{0.9, 0.999};
    double eps = 1e-8;
    double weight_decay = 0.0;
    bool amsgrad = false;
    void fields(Fields& f);
  };
  explicit Adam(Options options);
  double default_lr() const override { return options_.lr; }
  std::string name() const override { return "Adam"; }

 protected:
  std::vector<std::string> state_names() const override;
  void update(Bucket& bucket, const std::optional<Tensor>& found_inf) override;
  Options options_;
};

/// AdamW (Loshchilov and Hutter 2019): Adam with weight decay apart from the gradient.
class FULGUR_API AdamW final : public Adam {
 public:
  struct FULGUR_API Options : Adam::Options {
    Options() { weight_decay = 0.01; }
  };
  explicit AdamW(Options options) : Adam(options) {}
  std::string name() const override { return "AdamW"; }

 protected:
  void update(Bucket& bucket, const std::optional<Tensor>& found_inf) override;
};

}  // namespace fulgur
