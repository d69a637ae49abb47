#include "run/rank_role.h"

#include <algorithm>

#include "fulgur/core/state/state_bytes.h"

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

StateTree state_of_role(const RankRole& role) {
  return StateTree::map({{"share", role.share}, {"counts", role.counts}, {"logs", role.logs}});
}

RankRole role_in(const StateTree& state) {
  return {
      .share = state.at("share").as_int(), .counts = state.at("counts").as_bool(), .logs = state.at("logs").as_bool()};
}

std::vector<RankRole> roles_of_ranks(Strategy& strategy) {
  std::vector<RankRole> roles;
  for (const std::string& state : strategy.collectives().gather_text(pack_state(state_of_role(role_of(strategy)))))
    roles.push_back(role_in(unpack_state(state)));
  return roles;
}

}  // namespace fulgur::detail
