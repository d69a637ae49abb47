#include "run/rank_role.h"

#include <algorithm>

#include "fulgur/core/state/state_bytes.h"
#include "fulgur/core/state/state_tree.h"

namespace fulgur::detail {
namespace {

// The ranks that log have each share of the data the same number of times, next to each other.
bool counts_in_training(const Strategy& strategy) {
  const int64_t first = strategy.logging_rank(), rank = strategy.rank();
  const int64_t copies = std::max<int64_t>((strategy.world_size() - first) / strategy.data_shares(), 1);
  return rank < first || (rank - first) % copies == 0;
}

}  // namespace

RankRole role_of(const Strategy& strategy) {
  return {.share = strategy.data_share(),
          .counts = counts_in_training(strategy),
          .logs = strategy.rank() == strategy.logging_rank()};
}

std::vector<RankRole> roles_of_ranks(Strategy& strategy) {
  const RankRole own = role_of(strategy);
  const std::string text = pack_state(StateTree::List{own.share, own.counts, own.logs});
  std::vector<RankRole> roles;
  for (const std::string& of_rank : strategy.collectives().gather_text(text)) {
    const StateTree role = unpack_state(of_rank);
    roles.push_back({.share = role.as_list()[0].as_int(),
                     .counts = role.as_list()[1].as_bool(),
                     .logs = role.as_list()[2].as_bool()});
  }
  return roles;
}

}  // namespace fulgur::detail
