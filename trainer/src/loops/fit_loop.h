#pragma once

#include "run/run.h"

namespace fulgur::detail {

/// Trains until a limit, a request to stop or a signal. Expects everything of the run to be set up and restored.
void fit_loop(Run& run, bool resumed);

/// Validation batches between two validations inside an epoch of `train_batches`; nothing: at the epoch's end only.
/// Throws a ConfigError where the interval does not fit.
std::optional<int64_t> validation_interval(const TrainerOptions& options, std::optional<int64_t> train_batches);

}  // namespace fulgur::detail
