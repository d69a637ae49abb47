#pragma once

#include <memory>
#include <optional>
#include <string>

#include "fulgur/core/contracts/callback.h"
#include "fulgur/core/options/monitor_mode.h"

namespace fulgur {

namespace detail {
class EarlyStoppingRule;
}

/// Why an `EarlyStopping` stopped the fit.
enum class EarlyStoppingReason {
  not_stopped,
  stopping_threshold,
  divergence_threshold,
  patience_exhausted,
  non_finite_metric
};

/// Stops a fit whose monitored metric stops improving. Checks once per training epoch or validation, reading the
/// metric, which may wait for the device; does nothing in the sanity check, with fast_dev_run and outside fit. A stop
/// on one rank stops all. It behaves like Lightning's, except that a missing metric with `strict: false` always warns,
/// once.
class FULGUR_API EarlyStopping final : public Callback {
 public:
  struct FULGUR_API Options {
    std::string monitor = {};
    double min_delta = 0.0;
    int64_t patience = 3;
    bool verbose = false;
    MonitorMode mode = MonitorMode::min;
    bool strict = true;
    bool check_finite = true;
    std::optional<double> stopping_threshold = {};
    std::optional<double> divergence_threshold = {};
    std::optional<bool> check_on_train_epoch_end = {};
    bool log_rank_zero_only = false;
    void fields(Fields& f);
  };

  /// Throws a ConfigError if `monitor` is empty.
  explicit EarlyStopping(Options options);
  ~EarlyStopping() override;

  std::string state_key() const override;
  Phase phase() const override { return Phase::decide; }
  std::vector<std::string> monitored_metrics() const override { return {options_.monitor}; }
  std::optional<std::string> required_metric() const override;
  StateTree state() const override;
  void load_state(const StateTree& state) override;

  /// Resets the best value and the count of checks without improvement; a resume then restores them.
  void setup(RunContext& run, TrainerFn fn) override;
  void on_train_start(RunContext& run) override;
  /// Throws a ConfigError if the metric is missing and `strict` is on; so does `on_validation_end`.
  void on_train_epoch_end(RunContext& run) override;
  void on_validation_end(RunContext& run) override;
  /// Warns if the metric was never checked, in a run that has a folder.
  void on_train_end(RunContext& run) override;

  /// Epoch, counted from 0, in which the fit was stopped; 0 also if it was not stopped.
  int64_t stopped_epoch() const { return stopped_epoch_; }
  /// Best value of the metric so far; infinite before the first check.
  double best_score() const;
  /// Number of checks since the last improvement.
  int64_t wait_count() const;
  EarlyStoppingReason stopping_reason() const { return reason_; }
  /// The reason in words; empty if it has not stopped.
  const std::string& stopping_reason_message() const { return message_; }

 private:
  bool checks_at_train_epoch_end(RunContext& run) const;
  bool enabled(RunContext& run) const;
  void check(RunContext& run);
  [[noreturn]] void refuse_monitor(RunContext& run) const;
  std::string why_it_stops(EarlyStoppingReason reason, double current) const;
  void report_message(RunContext& run, const std::string& message) const;

  Options options_;
  std::unique_ptr<detail::EarlyStoppingRule> rule_;
  int64_t stopped_epoch_ = 0;
  bool has_checked_ = false;  // in this process
  EarlyStoppingReason reason_ = EarlyStoppingReason::not_stopped;
  std::string message_;
};

}  // namespace fulgur
