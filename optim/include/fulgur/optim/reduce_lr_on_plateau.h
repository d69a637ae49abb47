#pragma once

#include <cstdint>

#include "fulgur/core/contracts/lr_scheduler.h"
#include "fulgur/core/options/monitor_mode.h"

namespace fulgur {

/// Multiplies the rates by `factor` if the monitored metric has not improved for more than `patience` steps of the
/// schedule. This is torch.optim.lr_scheduler.ReduceLROnPlateau. A step without a metric is not counted.
class FULGUR_API ReduceLROnPlateau final : public LrScheduler {
 public:
  enum class ThresholdMode { rel, abs };
  friend constexpr auto enum_names(ThresholdMode) {
    return std::to_array<EnumName<ThresholdMode>>({{ThresholdMode::rel, "rel"}, {ThresholdMode::abs, "abs"}});
  }
  struct FULGUR_API Options {
    MonitorMode mode = MonitorMode::min;
    double factor = 0.1;
    int64_t patience = 10;
    double threshold = 1e-4;
    ThresholdMode threshold_mode = ThresholdMode::rel;
    int64_t cooldown = 0;
    double min_lr = 0.0;
    double eps = 1e-8;
    void fields(Fields& f);
  };
  explicit ReduceLROnPlateau(Options options);
  bool wants_metric() const override { return true; }
  std::optional<MonitorMode> metric_mode() const override { return options_.mode; }
  /// Depends on the reductions so far, not on the steps.
  double lr_at(int64_t steps, double initial_lr) const override;
  void scale_rates(double factor) override { options_.min_lr *= factor; }
  void observe(int64_t steps, std::optional<double> metric) override;
  StateTree state() const override;
  void load_state(const StateTree& state) override;

 private:
  bool is_better(double metric) const;
  Options options_;
  double best_;
  int64_t num_bad_epochs_ = 0;  // Python's names
  int64_t cooldown_counter_ = 0;
  int64_t reductions_ = 0;
};

}  // namespace fulgur
