#pragma once

#include <optional>

#include "fulgur/core/contracts/run_context.h"
#include "fulgur/core/options/interval.h"

namespace fulgur {

/// The position of a run in `unit`, counted over the whole run; seconds are those of `RunContext::fit_time_s`. Nullopt
/// if the run cannot measure it: tokens that the module does not count, or a fraction of a run of unknown length.
FULGUR_API std::optional<double> position_in(Interval::Unit unit, RunContext& run);

/// Decides when an interval of a run has passed: every 500 steps, 10 epochs, 30 minutes, a tenth of the run. It
/// fires at multiples of the interval over the whole run, including across a resume. Times are those of
/// `RunContext::fit_time_s`, the training time on the run's common clock, so that all ranks decide alike.
class FULGUR_API IntervalTrigger {
 public:
  /// Throws a ConfigError for an interval of length 0.
  explicit IntervalTrigger(Interval every);

  /// Starts at the run's position, without firing. Throws a ConfigError if the run cannot measure the interval: tokens
  /// that the module does not count, or a fraction of a run of unknown length.
  void start(RunContext& run);
  /// True once for each interval that has passed since the last call that returned true. Several that pass at once
  /// count as one.
  bool due(RunContext& run);
  /// The same before an optimizer's step that is about to be made: an interval of steps counts that step.
  bool due_with_next_step(RunContext& run);

  /// The position of the run, in units of the interval, up to which intervals have fired. It belongs to the saved
  /// state, since a run may be interrupted between a step and the next call of `due`. Set it after `start`.
  double reached() const { return last_; }
  void set_reached(double position) { last_ = position; }

  const Interval& every() const { return every_; }

 private:
  double position(RunContext& run) const;
  bool passes(double now);
  Interval every_;
  double last_ = 0;
};

}  // namespace fulgur
