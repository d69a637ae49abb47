#pragma once

#include "run/services.h"

namespace fulgur::detail {

/// Trains until a limit, a stop request or a signal. Expects the run to be set up and restored.
void fit_loop(RunState& run, Services& services, bool resumed);

/// Training batches between two validations inside an epoch of `train_batches`; nullopt: only at the epoch's end.
/// Throws a ConfigError if the interval does not fit.
std::optional<int64_t> validation_interval(const TrainerOptions& options, std::optional<int64_t> train_batches);

}  // namespace fulgur::detail
