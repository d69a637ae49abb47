#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/core/options/enum_names.h"
#include "fulgur/core/options/monitor_mode.h"
#include "fulgur/core/options/options.h"
#include "fulgur/core/state/state_tree.h"

namespace fulgur {

class Optimizer;

enum class ScheduleInterval { epoch, step };
constexpr auto enum_names(ScheduleInterval) {
  return std::to_array<EnumName<ScheduleInterval>>(
      {{ScheduleInterval::epoch, "epoch"}, {ScheduleInterval::step, "step"}});
}

/// The length of a run as far as it is known before its first step; a schedule uses it to resolve lengths in its
/// options.
struct FULGUR_API RunLength {
  std::optional<int64_t> epochs;  ///< epochs of the whole run
  std::optional<int64_t> steps;   ///< optimizer steps of the whole run
  std::optional<double> steps_per_epoch;
  std::optional<double> samples_per_step;  ///< samples of this rank, times the world size
  std::optional<int64_t> max_steps = {};   ///< a limit of `steps` that does not depend on the data
  bool operator==(const RunLength& other) const = default;
};

/// A learning-rate schedule over the groups of one optimizer.
///
/// Its lengths in samples, epochs or parts of the run are converted to steps once, for the first part of the run. If
/// the run resumes with a different number of samples per step (other ranks, accumulation or batch size), these lengths
/// keep their numbers of steps, and each later step counts in proportion to its samples: the rate is continuous, and
/// follows the number of samples processed. (A schedule over the whole run ends where `max_steps` ends the run. A
/// schedule with lengths in epochs, or in parts of a run that is limited by epochs, ends with the last epoch, even if
/// the last step of an epoch has fewer samples than the others, or epochs have different numbers of samples.) A
/// schedule whose lengths are all numbers of steps counts steps.
class FULGUR_API LrScheduler : public Stateful {
 public:
  static constexpr const char* kRegistryKind = "lr_scheduler";

  /// Stores the optimizer, which must outlive this, and sets the rates of step 0. This, `step` and `load_state` throw a
  /// ConfigError that names the schedule, the step and the value for a rate that is negative or not finite.
  void attach(Optimizer& optimizer);
  Optimizer& optimizer() const;
  /// Makes one step of the schedule; `metric` is the monitored value, for a schedule that needs one.
  void step(std::optional<double> metric = std::nullopt);
  /// How many steps of the run's first part a step counts as; it differs from 1 only after a resume with other batches.
  double pace() const { return pace_; }
  /// Called by the Trainer after `load_state` if the run was saved inside a window of accumulation: the step that ends
  /// it counts like the steps before it.
  void resume_in_window() { first_pace_ = saved_pace_; }
  virtual bool wants_metric() const { return false; }
  /// Whether low or high values of the metric count as better; nullopt if the schedule does not rank them, or if its
  /// parts differ.
  virtual std::optional<MonitorMode> metric_mode() const { return std::nullopt; }
  /// Sets the length of the run and how often the schedule steps. Called by the Trainer before `attach`.
  void set_run_length(const RunLength& length, ScheduleInterval interval, int64_t frequency);

  /// The rate of a group after `steps` steps of the run's first part. If possible, this is a pure function.
  virtual double lr_at(int64_t steps, double initial_lr) const = 0;
  /// The rate that the schedule gives each group of its optimizer now. Something else, such as a callback, may have set
  /// another one since.
  std::vector<double> rates() const;
  /// Momentum of the optimizer after `steps` steps; nullopt if the schedule does not change it.
  virtual std::optional<double> momentum_at(int64_t steps) const;
  /// Receives the metric for the step after `steps` steps, before `lr_at`.
  virtual void observe(int64_t steps, std::optional<double> metric);
  /// The schedules this one is composed of, in the order of its options.
  virtual std::vector<std::shared_ptr<LrScheduler>> parts() const { return {}; }
  /// Multiplies the rates set in the options, such as `max_lr`. Called before `attach`. The default multiplies those of
  /// the parts.
  virtual void scale_rates(double factor);
  /// Options that were `auto` (`total_steps`) and the steps they resolved to, once attached.
  const std::map<std::string, int64_t, std::less<>>& decided() const { return decided_; }

  /// Once attached, it also has `rates()`: if a resumed run has the same, nothing has moved the schedule.
  StateTree state() const override;
  void load_state(const StateTree& state) override;

 protected:
  /// Called by `attach` before the first rates are set, once the length of the run is known.
  virtual void on_attach(const Optimizer& optimizer);
  /// Makes `part` of a composed schedule count as this one does, with `steps` steps as its `auto` (nullopt if unknown).
  void adopt(LrScheduler& part, const Optimizer& optimizer, std::optional<int64_t> steps) const;
  /// Steps of this schedule in the whole run, or in its part of another schedule; nullopt if unknown.
  std::optional<int64_t> known_steps() const;
  /// Converts a length from the options to steps of this schedule. A count stays as it is; an interval is converted by
  /// the length of the run. Throws a ConfigError that names `option` (`StepLR.step_size`) if the run's length is
  /// unknown.
  int64_t steps_of(const Length& length, std::string_view option) const;
  /// Returns `known_steps()`, or throws the same error if it is unknown.
  int64_t total_steps(std::string_view option) const;

 private:
  void apply();
  /// Steps of the run's first part that are done.
  double exact_position() const;
  int64_t position() const;
  /// Whether `flag` is set in this schedule or in one of its parts.
  bool any(bool LrScheduler::*flag) const;
  /// How many steps of `plan`, the run's first part, each step counts as after a resume with other batches or epochs.
  /// `before` is the part of the run before this one.
  double pace_of(const RunLength& plan, const RunLength& before) const;
  /// Keeps the lengths of `plan`. `before` is the part of the run before this one.
  void keep_plan(const RunLength& plan, const RunLength& before);
  Optimizer* optimizer_ = nullptr;
  int64_t steps_ = 0;
  RunLength part_;                                     // of the run, since the resume
  RunLength run_length_;                               // of the run's first part, but with the limits of this one
  double pace_ = 1, first_pace_ = 1, saved_pace_ = 1;  // since the resume, of the first step after it, before it
  double resumed_position_ = 0;                        // `exact_position` at the last resume
  int64_t resumed_steps_ = 0;                          // and `steps_`
  mutable bool depends_on_run_ = false;                // a length depends on the run's
  mutable bool covers_run_ = false;                    // and is a part of it
  mutable bool counts_epochs_ = false;                 // or a number of its epochs
  ScheduleInterval interval_ = ScheduleInterval::epoch;
  int64_t frequency_ = 1;
  bool is_part_ = false;
  std::optional<int64_t> part_steps_;
  mutable std::map<std::string, int64_t, std::less<>> decided_;
};

/// A scheduler and when it steps (Lightning's lr_scheduler config).
struct SchedulerConfig {
  std::shared_ptr<LrScheduler> scheduler;
  ScheduleInterval interval = ScheduleInterval::epoch;
  int64_t frequency = 1;                    ///< every n epochs or steps, counted over the run
  std::optional<std::string> monitor = {};  ///< metric passed to a scheduler that needs one
  bool strict = true;                       ///< a missing metric is an error, else a warning
  std::string name = {};                    ///< label in logs; `lr-<optimizer>` if empty
};

}  // namespace fulgur
