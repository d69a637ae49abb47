#pragma once

#include <vector>

#include "checkpointing/checkpoint_entry.h"
#include "fulgur/core/contracts/collectives.h"
#include "fulgur/core/state/state_tree.h"
#include "run/rank_role.h"

namespace fulgur::detail {

/// Adds the parts that differ between ranks (generators, loaders, current metrics, gradients of an open window) to the
/// `state` of a checkpoint, as `ranks`. All ranks must call it.
void gather_rank_states(Collectives& collectives, StateTree& state);

/// The state from which a rank resumes, even if the roles of the ranks were others when it was saved:
/// `CheckpointEntry::of_rank` then decides about entries that differ between ranks; positions in the data are converted
/// by samples when they are loaded. `roles` are those of the ranks now.
StateTree state_of_rank(const StateTree& state, int64_t saved_world_size, int64_t rank,
                        const std::vector<RankRole>& roles);

}  // namespace fulgur::detail
