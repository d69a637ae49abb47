#pragma once

#include "run/run_state.h"

/// `trainer.global_batch_size`: the number of batches in an accumulation window follows from the batch size and the
/// number of ranks. Nothing here does anything without the option.
namespace fulgur::detail {

/// Sets the accumulation of the run, once the training loader is configured. Throws a ConfigError that says which sizes
/// are possible if batch size × ranks does not divide the option, and one if something else decides the accumulation.
void plan_global_batch(RunState& run);

/// How far the accumulation window of a checkpoint was, in batches of one process.
struct SavedWindow {
  int64_t length = 0, done = 0, losses = 0;
};

/// The same window in batches of this run, which may have other ranks or another batch size: the same samples.
/// `saved_batch` are the samples of a batch of all ranks of the checkpoint's run. Throws a CheckpointError if a batch
/// of this run would cross the point at which the checkpoint was saved, or the end of the window.
SavedWindow converted_window(const RunState& run, const SavedWindow& saved, int64_t saved_batch);

}  // namespace fulgur::detail
