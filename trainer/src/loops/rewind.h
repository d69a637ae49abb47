#pragma once

#include "run/services.h"

namespace fulgur::detail {

/// Call if the current batch has changed the weights: it counts, although it has failed.
void count_stepped_batch(RunState& run);

/// Resets counters, loaders and gradients to between two training batches, after an exception in the middle of one.
void rewind_to_batch_start(RunState& run, Services& services);

}  // namespace fulgur::detail
