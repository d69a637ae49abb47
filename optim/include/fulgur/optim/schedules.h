#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fulgur/core/optimizer.h"

namespace fulgur {

/// lr · gamma^(steps / step_size), whole steps.
class FULGUR_API StepLR final : public LrScheduler {
 public:
  struct FULGUR_API Options {
    Length step_size = 10;
    double gamma = 0.1;
    void fields(Fields& f);
  };
  explicit StepLR(Options options) : options_(options) {}

 protected:
  double lr_at(int64_t steps, double initial_lr) const override;

 private:
  Options options_;
};

/// lr · gamma^(number of milestones reached).
class FULGUR_API MultiStepLR final : public LrScheduler {
 public:
  struct FULGUR_API Options {
    std::vector<Length> milestones;
    double gamma = 0.1;
    void fields(Fields& f);
  };
  explicit MultiStepLR(Options options) : options_(std::move(options)) {}

 protected:
  double lr_at(int64_t steps, double initial_lr) const override;

 private:
  Options options_;
};

/// lr · gamma^steps.
class FULGUR_API ExponentialLR final : public LrScheduler {
 public:
  struct FULGUR_API Options {
    double gamma = 0.95;
    void fields(Fields& f);
  };
  explicit ExponentialLR(Options options) : options_(options) {}

 protected:
  double lr_at(int64_t steps, double initial_lr) const override;

 private:
  Options options_;
};

/// eta_min + (lr − eta_min) · (1 + cos(π · steps / t_max)) / 2 (Loshchilov and Hutter 2017, without restarts).
class FULGUR_API CosineAnnealingLR final : public LrScheduler {
 public:
  struct FULGUR_API Options {
    Auto<Length> t_max;
    double eta_min = 0.0;
    void fields(Fields& f);
  };
  explicit CosineAnnealingLR(Options options) : options_(options) {}

 protected:
  double lr_at(int64_t steps, double initial_lr) const override;

 private:
  Options options_;
};

/// Rises to max_lr and falls again (Smith and Topin 2018), cosine, two phases as torch.optim.lr_scheduler.OneCycleLR.
/// Momentum is left alone.
class FULGUR_API OneCycleLR final : public LrScheduler {
 public:
  struct FULGUR_API Options {
    double max_lr = 1e-2;
    Auto<Length> total_steps;
    double pct_start = 0.3;
    double div_factor = 25.0;
    double final_div_factor = 1e4;
    void fields(Fields& f);
  };
  explicit OneCycleLR(Options options) : options_(options) {}

 protected:
  double lr_at(int64_t steps, double initial_lr) const override;

 private:
  Options options_;
};

}  // namespace fulgur
