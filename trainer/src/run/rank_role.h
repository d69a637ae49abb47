#pragma once

#include <cstdint>
#include <vector>

#include "fulgur/core/contracts/strategy.h"
#include "fulgur/core/state/state_tree.h"

namespace fulgur::detail {

/// What a rank does in the training of a run.
struct RankRole {
  int64_t share = 0;   ///< of the data
  bool counts = true;  ///< what it logs is part of the values of the run: other ranks of its share do not log the same
  bool logs = true;    ///< what is being logged when a checkpoint is saved continues on this rank, in other runs
  bool operator==(const RankRole&) const = default;
};

RankRole role_of(const Strategy& strategy);
/// For checkpoints.
StateTree state_of_role(const RankRole& role);
RankRole role_in(const StateTree& state);
/// Those of all ranks, which must all call it.
std::vector<RankRole> roles_of_ranks(Strategy& strategy);

}  // namespace fulgur::detail
