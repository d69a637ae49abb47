#include "fulgur/core/contracts/interval_trigger.h"

#include <algorithm>
#include <cmath>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {

IntervalTrigger::IntervalTrigger(Interval every) : every_(every) {
  if (!(every.value > 0))
    throw ConfigError(cat("[core.interval] an interval must be longer than 0; got ", every.text(), "."));
}

double IntervalTrigger::position(RunContext& run) const {
  const Progress& progress = run.progress();
  switch (every_.unit) {
    case Interval::Unit::epochs: {
      // Within an epoch, its completed fraction counts if its length is known.
      const auto batches = run.num_batches(RunningStage::train);
      const double part =
          batches && *batches > 0 ? static_cast<double>(progress.batches.processed) / static_cast<double>(*batches) : 0;
      // At its end an epoch counts as done, even if its number of batches is unknown.
      return std::max(static_cast<double>(progress.epoch) + part, static_cast<double>(progress.epochs.processed));
    }
    case Interval::Unit::steps:
      return static_cast<double>(progress.global_step);
    case Interval::Unit::samples:
      return static_cast<double>(progress.samples_seen);
    case Interval::Unit::tokens:
      if (!run.meters().has_token_counts())
        throw ConfigError(cat("[core.interval] ", every_.text(),
                              " counts tokens, but the module does not count them. Override num_tokens(batch)."));
      return static_cast<double>(progress.tokens_seen);
    case Interval::Unit::seconds:
      return run.fit_time_s();
    case Interval::Unit::run: {
      const auto part = run.extent().progress_fraction();
      if (!part)
        throw ConfigError(cat("[core.interval] ", every_.text(),
                              " is a part of the run, whose length is not known. Set max_steps or max_time, or "
                              "max_epochs with a loader of known length."));
      return *part;
    }
  }
  return 0;
}

void IntervalTrigger::start(RunContext& run) {
  if (every_.unit == Interval::Unit::samples || every_.unit == Interval::Unit::tokens) run.meters().count_each_batch();
  last_ = position(run);
}

bool IntervalTrigger::due(RunContext& run) {
  const double now = position(run);
  // Rounding must not skip or repeat a multiple.
  const auto multiples = [&](double at) { return std::floor(at / every_.value * (1 + 1e-12) + 1e-12); };
  const bool passed = multiples(now) > multiples(last_);
  last_ = now;
  return passed;
}

}  // namespace fulgur
