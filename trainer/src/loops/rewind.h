#pragma once

#include "run/services.h"

namespace fulgur::detail {

/// Resets counters, loaders and gradients to between two training batches, after an exception in the middle of one.
void rewind_to_batch_start(RunState& run, Services& services);

}  // namespace fulgur::detail
