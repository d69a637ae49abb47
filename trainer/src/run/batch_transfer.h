#pragma once

#include "fulgur/core/state/let_go.h"
#include "run/memory_format.h"
#include "run/run_state.h"

namespace fulgur::detail {

/// The two parts of `batch_to_device`.
inline void transfer_batch(RunState& run, Batch& batch, int64_t loader_idx) {
  run.strategy->batch_to_device(*run.model, run.data.module.get(), batch, loader_idx);
}
inline void to_memory_format(const RunState& run, Batch& batch) {
  if (run.options.channels_last) to_channels_last(batch);
}

/// Moves the batch to the device through the transfer hooks, and converts it to the run's memory format.
inline void batch_to_device(RunState& run, Batch& batch, int64_t loader_idx) {
  const HeldBatch as_loaded(batch);  // a hook may replace the batch
  transfer_batch(run, batch, loader_idx);
  // Done after the hooks, whose results may also be images.
  to_memory_format(run, batch);
}

}  // namespace fulgur::detail
