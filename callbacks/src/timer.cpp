#include "fulgur/callbacks/timer.h"

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {

void Timer::Options::fields(Fields& f) {
  f(duration, "duration", "Training time after which the fit ends, such as 90min; null: no limit.")
      .units({"s", "min", "h"});
  f(interval, "interval", "When the time is checked: after each step, or each epoch.");
  f(verbose, "verbose", "Print a line when the time is over.");
}

Timer::Timer(Options options) : options_(std::move(options)) {
  if (options_.duration && options_.duration->unit != Interval::Unit::seconds)
    throw ConfigError(
        cat("[callbacks.Timer] duration must be a time such as 90min; got '", options_.duration->text(), "'."));
}

StateTree Timer::state() const { return StateTree::map({{"train_time_s", time_elapsed_s(RunningStage::train)}}); }

void Timer::load_state(const StateTree& state) {
  // Training that is under way, or over, is part of the time that is loaded.
  before_s_ = 0;
  before_s_ = state.at("train_time_s").as_double() - time_elapsed_s(RunningStage::train);
}

void Timer::setup(RunContext& run, TrainerFn) {
  run_ = &run;
  spans_ = {};
  before_s_ = 0;  // the state of a resumed fit, which is loaded later, sets it
  reported_ = false;
}

void Timer::teardown(RunContext& run, TrainerFn) {
  // A run that ended with an exception left its stages open.
  for (const RunningStage stage :
       {RunningStage::train, RunningStage::validate, RunningStage::test, RunningStage::predict})
    if (span(stage).start && !span(stage).end) finish(run, stage);
  run_ = nullptr;
}

void Timer::begin(RunContext& run, RunningStage stage) { span(stage) = {.start = run.elapsed_s(), .end = {}}; }
void Timer::finish(RunContext& run, RunningStage stage) { span(stage).end = run.elapsed_s(); }

std::optional<double> Timer::start_time_s(RunningStage stage) const { return span(stage).start; }
std::optional<double> Timer::end_time_s(RunningStage stage) const { return span(stage).end; }

double Timer::time_elapsed_s(RunningStage stage) const {
  const Span& s = span(stage);
  const double before = stage == RunningStage::train ? before_s_ : 0;
  if (!s.start) return before;
  const double now = s.end ? *s.end : run_ ? run_->elapsed_s() : *s.start;
  return before + now - *s.start;
}

std::optional<double> Timer::time_remaining_s() const {
  if (!options_.duration) return std::nullopt;
  return options_.duration->value - time_elapsed_s(RunningStage::train);
}

void Timer::check(RunContext& run) {
  const auto left = time_remaining_s();
  if (!left || *left > 0 || reported_) return;
  reported_ = true;
  const std::string reason = cat("Timer: the training time of ", options_.duration->text(), " is over");
  run.request_stop(reason);
  if (options_.verbose) run.print(cat(reason, " after ", format_fixed(time_elapsed_s(RunningStage::train), 1), " s"));
}

// A resumed run may be out of time; no filter covers this hook.
void Timer::on_fit_start(RunContext& run) {
  if (passes_last_step(run.progress())) check(run);
}
void Timer::on_train_start(RunContext& run) { begin(run, RunningStage::train); }
void Timer::on_train_end(RunContext& run) { finish(run, RunningStage::train); }
void Timer::on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t) {
  if (options_.interval == ScheduleInterval::step) check(run);
}
void Timer::on_train_epoch_end(RunContext& run) {
  if (options_.interval == ScheduleInterval::epoch) check(run);
}
void Timer::on_validation_start(RunContext& run) { begin(run, RunningStage::validate); }
void Timer::on_validation_end(RunContext& run) { finish(run, RunningStage::validate); }
void Timer::on_test_start(RunContext& run) { begin(run, RunningStage::test); }
void Timer::on_test_end(RunContext& run) { finish(run, RunningStage::test); }
void Timer::on_predict_start(RunContext& run) { begin(run, RunningStage::predict); }
void Timer::on_predict_end(RunContext& run) { finish(run, RunningStage::predict); }

[[maybe_unused]] static const bool registered_timer =
    Registry<Callback>::add<Timer>("Timer", "Measures stages and ends a fit whose training took too long.");

}  // namespace fulgur
