#pragma once

#include "fulgur/core/contracts/collectives.h"
#include "fulgur/core/state/state_tree.h"

namespace fulgur::detail {

/// Adds the parts that differ between ranks (generators, loaders, current metrics, gradients of an open window) to the
/// `state` of a checkpoint, as `ranks`. All ranks must call it.
void gather_rank_states(Collectives& collectives, StateTree& state);

/// The state from which rank `rank` of `world_size` resumes, even if the checkpoint was saved with another number of
/// ranks: `CheckpointEntry::of_rank` then decides about entries that differ between ranks; positions in the data are
/// converted by samples when they are loaded.
StateTree state_of_rank(const StateTree& state, int64_t saved_world_size, int64_t rank, int64_t world_size);

}  // namespace fulgur::detail
