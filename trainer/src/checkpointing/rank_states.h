#pragma once

#include <vector>

#include "fulgur/core/contracts/collectives.h"
#include "fulgur/core/state/state_tree.h"

namespace fulgur::detail {

/// Adds the parts that differ between ranks (generators, loaders, current metrics, gradients of an open window) to the
/// `state` of a checkpoint, as `ranks`. All ranks must call it.
void gather_rank_states(Collectives& collectives, StateTree& state);

/// The state from which rank `rank` of `world_size` resumes, even if the checkpoint was saved with another number of
/// ranks: the table's `of_rank` then decides about entries that differ between ranks; positions in the data are
/// converted by samples when they are loaded.
StateTree state_of_rank(const StateTree& state, int64_t saved_world_size, int64_t rank, int64_t world_size);

/// The values of one entry, of each rank that saved the checkpoint.
using RankValues = std::vector<const StateTree*>;

/// The sum of the gradients, each divided by the number of ranks, as an exchange would have computed it.
StateTree gradients_of_rank(const RankValues& values, int64_t rank);
/// Current metrics of all ranks for rank 0; none for the others.
StateTree logs_of_rank(const RankValues& values, int64_t rank);
/// The generators for rank 0; null for the others, which draw new random numbers.
StateTree rng_of_rank(const RankValues& values, int64_t rank);

}  // namespace fulgur::detail
