#pragma once

#include <array>
#include <optional>

#include "fulgur/core/contracts/callback.h"
#include "fulgur/core/contracts/lr_scheduler.h"

namespace fulgur {

/// Measures how long each stage takes, on the run's common clock, and ends a fit whose training took `duration`. The
/// training time includes validation and continues in a resumed fit; the time of any other stage is that of its last
/// run.
class FULGUR_API Timer final : public Callback {
 public:
  struct FULGUR_API Options {
    std::optional<Interval> duration = {};
    ScheduleInterval interval = ScheduleInterval::step;
    bool verbose = true;
    void fields(Fields& f);
  };

  /// Throws a ConfigError if `duration` is not a time.
  explicit Timer(Options options);

  Phase phase() const override { return Phase::decide; }
  StateTree state() const override;
  /// Sets the training time, also while training is under way: the time since then is added to it.
  void load_state(const StateTree& state) override;

  void setup(RunContext& run, TrainerFn fn) override;
  void teardown(RunContext& run, TrainerFn fn) override;
  /// A resumed fit whose time is over stops before its first step.
  void on_fit_start(RunContext& run) override;
  void on_train_start(RunContext& run) override;
  void on_train_end(RunContext& run) override;
  void on_train_batch_end(RunContext& run, const StepOutput& output, const Batch& batch, int64_t batch_idx) override;
  void on_train_epoch_end(RunContext& run) override;
  void on_validation_start(RunContext& run) override;
  void on_validation_end(RunContext& run) override;
  void on_test_start(RunContext& run) override;
  void on_test_end(RunContext& run) override;
  void on_predict_start(RunContext& run) override;
  void on_predict_end(RunContext& run) override;

  /// Time (s since the run began) at which the stage started; nullopt before.
  std::optional<double> start_time_s(RunningStage stage = RunningStage::train) const;
  /// Time (s since the run began) at which the stage ended; nullopt before.
  std::optional<double> end_time_s(RunningStage stage = RunningStage::train) const;
  double time_elapsed_s(RunningStage stage = RunningStage::train) const;
  /// Seconds of `duration` left for training, below 0 if it is over; nullopt without a duration.
  std::optional<double> time_remaining_s() const;

 private:
  struct Span {
    std::optional<double> start, end;
  };
  Span& span(RunningStage stage) { return spans_[static_cast<size_t>(stage)]; }
  const Span& span(RunningStage stage) const { return spans_[static_cast<size_t>(stage)]; }
  void begin(RunContext& run, RunningStage stage);
  void finish(RunContext& run, RunningStage stage);
  void check(RunContext& run);

  Options options_;
  RunContext* run_ = nullptr;  // null outside a run
  std::array<Span, 4> spans_;
  double before_s_ = 0;  // what the loaded state adds to the span of training
  bool reported_ = false;
};

}  // namespace fulgur
