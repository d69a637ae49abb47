#pragma once

#include "fulgur/trainer/config.h"

namespace fulgur::cli {

/// Carries out the callbacks LearningRateFinder and BatchSizeFinder of the config, in their order, if the fit starts at
/// its first step: sets the learning rate or the batch size, and the result in their options. `several`: this process
/// is one of the run's. Returns the exit code if a signal has ended a trial. Throws an Error if no batch fits, and a
/// ConfigError for a BatchSizeFinder in a run of several processes, or beside a BatchSizeScheduler.
ExitCode run_finders(Config& config, bool several);

}  // namespace fulgur::cli
