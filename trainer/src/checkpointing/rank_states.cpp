#include "checkpointing/rank_states.h"

#include "checkpointing/checkpoint_table.h"
#include "fulgur/core/state/state_bytes.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/trainer/checkpoint_keys.h"

namespace fulgur::detail {

void gather_rank_states(Collectives& collectives, StateTree& state) {
  if (collectives.world_size() == 1) return;
  StateTree own;
  for (const CheckpointEntry& entry : checkpoint_entries())
    if (entry.per_rank) own[entry.key] = state.at(entry.key);
  const std::vector<std::string> all = collectives.gather_text(pack_state(own));
  if (collectives.rank() != 0) return;
  StateTree::List others;
  for (size_t rank = 1; rank < all.size(); ++rank) others.push_back(unpack_state(all[rank]));
  state[checkpoint_keys::kRanks] = std::move(others);
}

StateTree state_of_rank(const StateTree& saved, int64_t saved_world_size, int64_t saved_shares,
                        const RankPlace& place) {
  const auto [rank, world_size, share, shares, continues_logs] = place;
  StateTree state = saved;
  if (saved_world_size == world_size && saved_shares == shares) {
    if (rank == 0) return state;
    const auto& others = saved.at(checkpoint_keys::kRanks).as_list();
    if (static_cast<int64_t>(others.size()) != world_size - 1)
      throw CheckpointError(cat("[trainer.resume] the checkpoint was saved by ", saved_world_size,
                                " ranks, but holds the state of ", static_cast<int64_t>(others.size()) + 1, "."));
    const StateTree& own = others[static_cast<size_t>(rank) - 1];
    for (const CheckpointEntry& entry : checkpoint_entries())
      if (entry.per_rank) state[entry.key] = own.at(entry.key);
    return state;
  }
  std::vector<const StateTree*> ranks{&saved};
  if (saved.contains(checkpoint_keys::kRanks))
    for (const StateTree& other : saved.at(checkpoint_keys::kRanks).as_list()) ranks.push_back(&other);
  for (const CheckpointEntry& entry : checkpoint_entries()) {
    if (!entry.of_rank) continue;
    RankValues values;
    for (const StateTree* saved_rank : ranks) values.push_back(&saved_rank->at(entry.key));
    state[entry.key] = entry.of_rank(values, place);
  }
  return state;
}

}  // namespace fulgur::detail
