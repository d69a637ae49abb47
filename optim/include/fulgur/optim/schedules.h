#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "fulgur/core/contracts/lr_scheduler.h"

/// Schedules that are functions of the step, where s is the number of steps done and lr the group's initial rate.
/// Lengths are counts of the schedule's own steps, or intervals of the run (`10ep`, `500st`, `0.1dur`).
namespace fulgur {

/// A schedule with a length that may be that of the whole run.
class FULGUR_API ScheduleOfLength : public LrScheduler {
 protected:
  using LrScheduler::steps_of;
  /// Converts `length` to steps; auto is the number of steps of the run.
  int64_t steps_of(const Auto<Length>& length, std::string_view option) const;
};

/// lr · gamma^(s / step_size), in whole steps. This is torch's StepLR.
class FULGUR_API StepLR final : public LrScheduler {
 public:
  struct FULGUR_API Options {
    Length step_size = 10;
    double gamma = 0.1;
    void fields(Fields& f);
  };
  explicit StepLR(Options options) : options_(options) {}
  double lr_at(int64_t steps, double initial_lr) const override;

 private:
  Options options_;
};

/// lr · gamma^(number of milestones reached). This is torch's MultiStepLR.
class FULGUR_API MultiStepLR final : public LrScheduler {
 public:
  struct FULGUR_API Options {
    std::vector<Length> milestones;
    double gamma = 0.1;
    void fields(Fields& f);
  };
  explicit MultiStepLR(Options options) : options_(std::move(options)) {}
  double lr_at(int64_t steps, double initial_lr) const override;

 private:
  Options options_;
};

/// lr · gamma^s. This is torch's ExponentialLR.
class FULGUR_API ExponentialLR final : public LrScheduler {
 public:
  struct FULGUR_API Options {
    double gamma = 0.95;
    void fields(Fields& f);
  };
  explicit ExponentialLR(Options options) : options_(options) {}
  double lr_at(int64_t steps, double initial_lr) const override;

 private:
  Options options_;
};

/// lr · factor before total_iters, lr from then on. This is torch's ConstantLR.
class FULGUR_API ConstantLR final : public ScheduleOfLength {
 public:
  struct FULGUR_API Options {
    double factor = 1.0 / 3;
    Auto<Length> total_iters{Length(5)};
    void fields(Fields& f);
  };
  explicit ConstantLR(Options options) : options_(options) {}
  double lr_at(int64_t steps, double initial_lr) const override;

 private:
  Options options_;
};

/// lr · (start_factor + (end_factor − start_factor) · min(s / total_iters, 1)). This is torch's LinearLR.
class FULGUR_API LinearLR final : public ScheduleOfLength {
 public:
  struct FULGUR_API Options {
    double start_factor = 1.0 / 3;
    double end_factor = 1.0;
    Auto<Length> total_iters{Length(5)};
    void fields(Fields& f);
  };
  explicit LinearLR(Options options) : options_(options) {}
  double lr_at(int64_t steps, double initial_lr) const override;

 private:
  Options options_;
};

/// lr · (1 − min(s / total_iters, 1))^power. This is torch's PolynomialLR.
class FULGUR_API PolynomialLR final : public ScheduleOfLength {
 public:
  struct FULGUR_API Options {
    Auto<Length> total_iters{Length(5)};
    double power = 1.0;
    void fields(Fields& f);
  };
  explicit PolynomialLR(Options options) : options_(options) {}
  double lr_at(int64_t steps, double initial_lr) const override;

 private:
  Options options_;
};

/// lr · √(timescale / (s + timescale)) (Vaswani et al. 2017, arXiv 1706.03762, section 5.3, after its warm-up). Inside
/// a WarmupLR of the same length it is transformers' get_inverse_sqrt_schedule.
class FULGUR_API InverseSquareRootLR final : public LrScheduler {
 public:
  struct FULGUR_API Options {
    Length timescale = 1000;
    void fields(Fields& f);
  };
  explicit InverseSquareRootLR(Options options) : options_(options) {}
  double lr_at(int64_t steps, double initial_lr) const override;

 private:
  Options options_;
};

/// eta_min + (lr − eta_min) · (1 + cos(π · s / t_max)) / 2 (Loshchilov and Hutter 2017, arXiv 1608.03983, without
/// restarts). This is torch's CosineAnnealingLR.
class FULGUR_API CosineAnnealingLR final : public ScheduleOfLength {
 public:
  struct FULGUR_API Options {
    Auto<Length> t_max;
    double eta_min = 0.0;
    void fields(Fields& f);
  };
  explicit CosineAnnealingLR(Options options) : options_(options) {}
  double lr_at(int64_t steps, double initial_lr) const override;
  void scale_rates(double factor) override { options_.eta_min *= factor; }

 private:
  Options options_;
};

/// The same with restarts: the first fall takes t_0 steps, each later one t_mult times the previous one. This is
/// torch's CosineAnnealingWarmRestarts.
class FULGUR_API CosineAnnealingWarmRestarts final : public LrScheduler {
 public:
  struct FULGUR_API Options {
    Length t_0 = 10;
    int64_t t_mult = 1;
    double eta_min = 0.0;
    void fields(Fields& f);
  };
  explicit CosineAnnealingWarmRestarts(Options options) : options_(options) {}
  double lr_at(int64_t steps, double initial_lr) const override;
  void scale_rates(double factor) override { options_.eta_min *= factor; }

 private:
  Options options_;
};

/// Warm-up, stable, decay (Hu et al. 2024, arXiv 2404.06395; shapes: Hägele et al. 2024, arXiv 2405.18392): lr · s /
/// warmup, then lr, and in the last `decay` steps lr · (f + (1 − f) · shape(x)) with x from 0 to 1, f = final_factor,
/// and shape 1 − x, (1 + cos πx) / 2 or 1 − √x.
class FULGUR_API WarmupStableDecayLR final : public ScheduleOfLength {
 public:
  enum class Shape { linear, cosine, sqrt };
  friend constexpr auto enum_names(Shape) {
    return std::to_array<EnumName<Shape>>(
        {{Shape::linear, "linear"}, {Shape::cosine, "cosine"}, {Shape::sqrt, "sqrt"}});
  }
  struct FULGUR_API Options {
    Length warmup = 0;
    Length decay = Interval{0.1, Interval::Unit::run};
    Auto<Length> total_steps = {};
    Shape decay_shape = Shape::linear;
    double final_factor = 0.0;
    void fields(Fields& f);
  };
  explicit WarmupStableDecayLR(Options options) : options_(std::move(options)) {}
  double lr_at(int64_t steps, double initial_lr) const override;

 protected:
  /// Throws a ConfigError if warm-up and decay together are longer than the run.
  void on_attach(const Optimizer& optimizer) override;

 private:
  Options options_;
};

/// lr · function(s), for C++ only. This is torch's LambdaLR.
class FULGUR_API LambdaLR final : public LrScheduler {
 public:
  explicit LambdaLR(std::function<double(int64_t)> function) : function_(std::move(function)) {}
  double lr_at(int64_t steps, double initial_lr) const override { return initial_lr * function_(steps); }

 private:
  std::function<double(int64_t)> function_;
};

}  // namespace fulgur
