#include "fulgur/core/contracts/interval_trigger.h"

#include <cmath>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {

IntervalTrigger::IntervalTrigger(Interval every) : every_(every) {
  if (!(every.value > 0))
    throw ConfigError(cat("[core.interval] an interval must be longer than 0; got ", every.text(), "."));
}

double IntervalTrigger::position(RunContext& run) const {
  if (const auto position = position_in(every_.unit, run)) return *position;
  throw ConfigError(cat("[core.interval] ", every_.text(),
                        every_.unit == Interval::Unit::tokens
                            ? " counts tokens, but the module does not count them. Override num_tokens(batch)."
                            : " is a part of the run, whose length is not known. Set max_steps or max_time, or "
                              "max_epochs with a loader of known length."));
}

std::optional<double> position_in(Interval::Unit unit, RunContext& run) {
  const Progress& progress = run.progress();
  switch (unit) {
    case Interval::Unit::epochs:
      return progress.epochs_done(run.num_batches(RunningStage::train));
    case Interval::Unit::steps:
      return static_cast<double>(progress.global_step);
    case Interval::Unit::samples:
      return static_cast<double>(progress.samples_seen);
    case Interval::Unit::tokens:
      if (!run.meters().has_token_counts()) return std::nullopt;
      return static_cast<double>(progress.tokens_seen);
    case Interval::Unit::seconds:
      return run.fit_time_s();
    case Interval::Unit::run:
      return run.extent().progress_fraction();
  }
  return std::nullopt;
}

void IntervalTrigger::start(RunContext& run) {
  if (every_.unit == Interval::Unit::samples || every_.unit == Interval::Unit::tokens) run.meters().count_each_batch();
  last_ = position(run);
}

bool IntervalTrigger::due(RunContext& run) { return passes(position(run)); }

bool IntervalTrigger::due_with_next_step(RunContext& run) {
  return passes(position(run) + (every_.unit == Interval::Unit::steps ? 1 : 0));
}

bool IntervalTrigger::passes(double now) {
  // Rounding must not skip or repeat a multiple.
  const auto multiples = [&](double at) { return std::floor(at / every_.value * (1 + 1e-12) + 1e-12); };
  const bool passed = multiples(now) > multiples(last_);
  last_ = now;
  return passed;
}

}  // namespace fulgur
