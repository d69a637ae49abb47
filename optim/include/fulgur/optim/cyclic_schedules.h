#pragma once

#include <optional>
#include <utility>

#include "fulgur/core/contracts/lr_scheduler.h"

namespace fulgur {

/// The rate cycles between base_lr and max_lr, and momentum moves in the opposite direction (Smith 2017, arXiv
/// 1506.01186). This is torch's CyclicLR. `triangular2` halves the amplitude with each cycle, `exp_range` multiplies it
/// by gamma^s. The optimizer's own rate is ignored.
class FULGUR_API CyclicLR final : public LrScheduler {
 public:
  enum class Mode { triangular, triangular2, exp_range };
  friend constexpr auto enum_names(Mode) {
    return std::to_array<EnumName<Mode>>(
        {{Mode::triangular, "triangular"}, {Mode::triangular2, "triangular2"}, {Mode::exp_range, "exp_range"}});
  }
  struct FULGUR_API Options {
    double base_lr = 1e-3;
    double max_lr = 1e-2;
    Length step_size_up = 2000;
    std::optional<Length> step_size_down = {};
    Mode mode = Mode::triangular;
    double gamma = 1.0;
    bool cycle_momentum = true;
    double base_momentum = 0.8;
    double max_momentum = 0.9;
    void fields(Fields& f);
  };
  explicit CyclicLR(Options options) : options_(std::move(options)) {}
  double lr_at(int64_t steps, double initial_lr) const override;
  std::optional<double> momentum_at(int64_t steps) const override;
  void scale_rates(double factor) override {
    options_.base_lr *= factor;
    options_.max_lr *= factor;
  }

 private:
  double height(int64_t steps) const;
  Options options_;
};

/// The rate rises from max_lr / div_factor to max_lr and falls to the first rate / final_div_factor, and momentum moves
/// in the opposite direction (Smith and Topin 2018, arXiv 1708.07120). This is torch's OneCycleLR, including its three
/// phases: up, down to the first rate, down to the last. After the last step it keeps the last rate, whereas torch
/// throws. The optimizer's own rate is ignored.
class FULGUR_API OneCycleLR final : public LrScheduler {
 public:
  enum class Anneal { cos, linear };
  friend constexpr auto enum_names(Anneal) {
    return std::to_array<EnumName<Anneal>>({{Anneal::cos, "cos"}, {Anneal::linear, "linear"}});
  }
  struct FULGUR_API Options {
    double max_lr = 1e-2;
    Auto<Length> total_steps = {};
    double pct_start = 0.3;
    double div_factor = 25.0;
    double final_div_factor = 1e4;
    Anneal anneal_strategy = Anneal::cos;
    bool three_phase = false;
    bool cycle_momentum = true;
    double base_momentum = 0.85;
    double max_momentum = 0.95;
    void fields(Fields& f);
  };
  explicit OneCycleLR(Options options) : options_(std::move(options)) {}
  double lr_at(int64_t steps, double initial_lr) const override;
  std::optional<double> momentum_at(int64_t steps) const override;
  void scale_rates(double factor) override { options_.max_lr *= factor; }

 private:
  struct Place;
  Place place(int64_t steps) const;
  double between(double from, double to, double part) const;
  Options options_;
};

}  // namespace fulgur
