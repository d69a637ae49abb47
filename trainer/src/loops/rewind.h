#pragma once

#include <optional>

#include "run/services.h"

namespace fulgur::detail {

/// Call if the current batch has changed the weights: it counts, although it has failed.
void count_stepped_batch(RunState& run);

/// Resets counters, loaders and gradients to between two training batches, after an exception in the middle of one.
void rewind_to_batch_start(RunState& run, Services& services);

/// Remembers the run, which is between two batches, as its rewind point. `loggers`: what the loggers have written, if
/// the hooks that follow may write. Call only if a callback may save after an exception, since it copies buffers,
/// generators, the states of callbacks and, inside an accumulation window, gradients.
void take_rewind_point(RunState& run, const Services& services, std::optional<StateTree> loggers = {});

/// Takes the run back to its rewind point, without its training loaders.
void restore_rewind_point(RunState& run, Services& services);

}  // namespace fulgur::detail
