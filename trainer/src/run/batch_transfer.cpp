#include "run/batch_transfer.h"

#include "fulgur/core/state/let_go.h"
#include "run/memory_format.h"

namespace fulgur::detail {

void batch_to_device(RunState& run, Batch& batch, int64_t loader_idx) {
  const HeldBatch as_loaded(batch);  // a hook may replace the batch
  transfer_batch(run, batch, loader_idx);
  // Done after the hooks, whose results may also be images.
  to_memory_format(run, batch);
}

void transfer_batch(RunState& run, Batch& batch, int64_t loader_idx) {
  run.strategy->batch_to_device(*run.model, run.data.module.get(), batch, loader_idx);
}

void to_memory_format(const RunState& run, Batch& batch) {
  if (run.options.channels_last) to_channels_last(batch);
}

}  // namespace fulgur::detail
