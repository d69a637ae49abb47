#pragma once

#include <span>

#include "checkpointing/checkpoint_entry.h"

namespace fulgur::detail {

/// Everything that a checkpoint holds of a run besides the weights. A new piece of state needs one row here and one in
/// docs/checkpoints.md.
std::span<const CheckpointEntry> checkpoint_entries();

/// Loads the entries of `phase` from `state`, a checkpoint's or a rank's part of it, in the order of the table. An
/// entry that is absent is left as it is if the checkpoint has only weights; otherwise it throws a CheckpointError that
/// names the entry.
void load_entries(LoadPhase phase, Restoring& restoring, const StateTree& state);

/// Number of shares of the training data when the checkpoint was saved.
int64_t saved_data_shares(const CheckpointContent& content);

/// Samples of a batch of all ranks when the checkpoint was saved; nullopt if its loader did not report a batch size.
std::optional<int64_t> saved_batch_of_all(const CheckpointContent& content);

}  // namespace fulgur::detail
