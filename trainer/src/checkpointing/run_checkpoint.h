#pragma once

#include <filesystem>
#include <functional>

#include "checkpointing/checkpoint_table.h"

namespace fulgur::detail {

/// The whole state of a run as a checkpoint has it: what checkpoint_table.h lists. What rank 0 does not have alone is
/// under `ranks` (rank_states.h). Parameters, buffers and optimizers are tensors in files of their own. All ranks must
/// call it.
CheckpointContent collect_checkpoint(Collecting collecting);

/// Writes what is known only after the rows of metrics are written into a content collected before.
std::function<void(CheckpointContent&)> late_values(Collecting collecting);

/// The module's weights from `content`, of the file `checkpoint`, converted to the run's precision. Throws a
/// CheckpointError if they do not fit and `RunState::load` is strict.
void load_weights(RunState& run, const CheckpointContent& content, const std::filesystem::path& checkpoint);

/// What a fit resumes with, as far as `restoring.load` wants it: optimizers, loops, generators, the strategy. Reports
/// what differs from when the checkpoint was made. Throws a CheckpointError if the checkpoint has weights only.
void restore_run(Restoring restoring);

}  // namespace fulgur::detail
