#pragma once

#include <filesystem>
#include <functional>

#include "checkpointing/checkpoint_table.h"

namespace fulgur::detail {

/// The whole state of a run as a checkpoint stores it: everything that checkpoint_table.h lists. What differs between
/// ranks is under `ranks` (rank_states.h). Parameters, buffers and optimizers are tensors in separate files. All ranks
/// must call it.
CheckpointContent collect_checkpoint(Collecting collecting);

/// Adds what is known only after the rows of metrics are written to a content that was collected before.
std::function<void(CheckpointContent&)> late_values(Collecting collecting);

/// The module's weights from `content`, of the file `checkpoint`, converted to the run's precision. Throws a
/// CheckpointError if they do not fit and `RunState::load` is strict.
void load_weights(RunState& run, const CheckpointContent& content, const std::filesystem::path& checkpoint);

/// Restores what a fit resumes with, as far as `restoring.load` requests it: optimizers, loops, generators, the
/// strategy. Reports what has changed since the checkpoint was made. Throws a CheckpointError if the checkpoint has
/// weights only.
void restore_run(Restoring restoring);

}  // namespace fulgur::detail
