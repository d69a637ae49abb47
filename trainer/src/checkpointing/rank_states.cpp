#include "checkpointing/rank_states.h"

#include <algorithm>

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

namespace {

// Checkpoints of earlier versions have no roles: each rank had a share, and rank 0 logged.
std::vector<RankRole> saved_roles(const std::vector<const StateTree*>& ranks) {
  std::vector<RankRole> roles;
  for (const StateTree* rank : ranks) {
    const auto number = static_cast<int64_t>(roles.size());
    const bool has_role = rank->contains("loop") && rank->at("loop").contains("role");
    roles.push_back(has_role ? role_in(rank->at("loop").at("role"))
                             : RankRole{.share = number, .counts = true, .logs = number == 0});
  }
  return roles;
}

int64_t shares_of(const std::vector<RankRole>& roles) {
  int64_t shares = 0;
  for (const RankRole& role : roles) shares = std::max(shares, role.share + 1);
  return shares;
}

}  // namespace

StateTree state_of_rank(const StateTree& saved, int64_t saved_world_size, int64_t rank,
                        const std::vector<RankRole>& roles) {
  std::vector<const StateTree*> ranks{&saved};
  if (saved.contains(checkpoint_keys::kRanks))
    for (const StateTree& other : saved.at(checkpoint_keys::kRanks).as_list()) ranks.push_back(&other);
  if (static_cast<int64_t>(ranks.size()) != saved_world_size)
    throw CheckpointError(cat("[trainer.resume] the checkpoint was saved by ", saved_world_size,
                              " ranks, but holds the state of ", ranks.size(), "."));
  const std::vector<RankRole> before = saved_roles(ranks);
  StateTree state = saved;
  const auto own = static_cast<size_t>(rank);
  if (before == roles) {
    for (const CheckpointEntry& entry : checkpoint_entries())
      if (entry.per_rank) state[entry.key] = ranks[own]->at(entry.key);
    return state;
  }
  const StateTree* of_share = nullptr;
  if (shares_of(before) == shares_of(roles))
    of_share =
        ranks[static_cast<size_t>(std::ranges::find(before, roles[own].share, &RankRole::share) - before.begin())];
  for (const CheckpointEntry& entry : checkpoint_entries()) {
    if (!entry.per_rank) continue;
    RankValues values;
    for (size_t i = 0; i < ranks.size(); ++i) {
      const StateTree& value = ranks[i]->at(entry.key);
      values.all.push_back(&value);
      if (before[i].counts) values.counting.push_back(&value);
    }
    if (of_share) values.of_share = &of_share->at(entry.key);
    if (entry.of_rank)
      state[entry.key] = entry.of_rank(values, roles[own]);
    else if (of_share)
      state[entry.key] = *values.of_share;
  }
  return state;
}

}  // namespace fulgur::detail
