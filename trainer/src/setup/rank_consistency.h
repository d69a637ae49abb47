#pragma once

#include <map>
#include <string>

#include "fulgur/core/contracts/collectives.h"

namespace fulgur::detail {

struct RunState;

/// The facts that ranks must have in common, by name.
using Facts = std::map<std::string, std::string>;

/// Checks that every rank has the same version, config and parameters, before any exchange that would otherwise fail.
/// Throws a DistributedError with the differences, on all ranks. All must call it.
void check_same_on_all_ranks(RunState& run);
void check_same_on_all_ranks(Collectives& collectives, const Facts& facts);

}  // namespace fulgur::detail
