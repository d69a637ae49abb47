#pragma once

#include "run/run_state.h"

namespace fulgur::detail {

/// Moves the batch to the device through the transfer hooks, and converts it to the run's memory format.
void batch_to_device(RunState& run, Batch& batch, int64_t loader_idx);

/// The two parts of `transfer_batch`.
void transfer_batch(RunState& run, Batch& batch, int64_t loader_idx);
void to_memory_format(const RunState& run, Batch& batch);

}  // namespace fulgur::detail
