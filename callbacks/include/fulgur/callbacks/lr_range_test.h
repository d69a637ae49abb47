#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/core/contracts/callback.h"
#include "fulgur/core/contracts/optimizer.h"
#include "fulgur/core/options/enum_names.h"

namespace fulgur {

/// How the learning rate grows from step to step: by a constant factor, or by a constant amount.
enum class LrTestMode { exponential, linear };
constexpr auto enum_names(LrTestMode) {
  return std::to_array<EnumName<LrTestMode>>(
      {{LrTestMode::exponential, "exponential"}, {LrTestMode::linear, "linear"}});
}

/// One step of a range test.
struct FULGUR_API LrPoint {
  double lr = 0;        ///< of the first parameter group
  double loss = 0;      ///< mean over the batches of the step and over all ranks; may be NaN or infinite
  double smoothed = 0;  ///< exponential mean of the losses until here, without the bias of its start
};

/// Why a range test ended.
enum class LrTestEnd { all_steps, diverged, not_finite, no_more_data };

/// What a range test has measured, in the order of its steps.
struct FULGUR_API LrCurve {
  std::vector<LrPoint> points;
  LrTestEnd end = LrTestEnd::no_more_data;
};

/// A learning rate found by a range test, or the reason why there is none.
struct FULGUR_API LrSuggestion {
  std::optional<double> lr;
  std::optional<size_t> index;  ///< of its point
  std::string reason;           ///< a sentence without a full stop, if there is no rate
};

/// Fewest finite steps of a test for which there may be a suggestion, with the defaults of `suggest_lr`.
inline constexpr int64_t kFewestLrSteps = 14;

/// The rate at which the smoothed loss falls most steeply from step to step, without the first `skip_begin` and the
/// last `skip_end` points. As the rates grow by a constant factor (or amount), this is the slope over log(lr) (or lr).
/// Points that are not finite end the curve. There is no suggestion if fewer than three points are left or the loss
/// falls nowhere.
FULGUR_API LrSuggestion suggest_lr(const LrCurve& curve, size_t skip_begin = 10, size_t skip_end = 1);

/// The rate of step `step` (from 0) of `steps`: `min_lr` in the first, `max_lr` in the last.
FULGUR_API double range_test_lr(LrTestMode mode, double min_lr, double max_lr, int64_t step, int64_t steps);

/// The learning-rate range test (Smith 2017): each optimizer step has a higher rate than the one before, until the loss
/// diverges. The rates of several parameter groups keep their ratios, and that of the first group is the tested one. It
/// changes the weights and the rates of the run, so give it to a run that is made for it (`trainer tune lr`). It reads
/// the loss of each batch, and with several ranks exchanges it. It has one optimizer; its schedule has no effect.
class FULGUR_API LrRangeTest final : public Callback {
 public:
  struct FULGUR_API Options {
    double min_lr = 1e-8;
    double max_lr = 1;
    int64_t steps = 100;  ///< optimizer steps
    LrTestMode mode = LrTestMode::exponential;
    /// The test ends when the smoothed loss exceeds this many times its smallest value, if that is positive; nullopt:
    /// never.
    std::optional<double> early_stop_threshold = 4;
  };
  /// Throws a ConfigError unless 0 < min_lr < max_lr, at least one step, and a threshold above 1.
  explicit LrRangeTest(Options options);

  /// Throws a ConfigError if the run has not exactly one optimizer, or one whose first group has the rate 0.
  void on_train_start(RunContext& run) override;
  void on_train_batch_start(RunContext& run, const Batch& batch, int64_t batch_idx) override;
  /// Throws an Error if training_step returned no loss.
  void on_train_batch_end(RunContext& run, const StepOutput& output, const Batch& batch, int64_t batch_idx) override;

  const LrCurve& curve() const { return curve_; }
  /// The rate of the first group in the run's options.
  double initial_lr() const { return initial_lr_; }

 private:
  void note_step(RunContext& run);

  Options options_;
  LrCurve curve_;
  Optimizer* optimizer_ = nullptr;
  std::vector<double> ratios_;  // of the groups' rates to that of the first
  double initial_lr_ = 0;
  double current_lr_ = 0;
  double loss_sum_ = 0;  // of the batches of the step under way
  int64_t losses_ = 0;
  double mean_ = 0;  // the exponential mean, with the bias of its start
  std::optional<double> least_;
  bool ended_ = false;
};

}  // namespace fulgur
