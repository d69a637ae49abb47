#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fulgur/core/process_place.h"

namespace fulgur::detail {

/// What a rank says of its node, as text for the others: the machine's name, its own number there, and how many it is
/// told are there.
std::string node_identity(const std::string& host, const ProcessPlace& place);

/// `place` with node numbers that are true, from the words of all ranks in their order: nodes count by their first
/// rank, and may have different numbers of ranks, in any order. Throws a DistributedError where ranks that share a name
/// cannot share a node.
ProcessPlace number_nodes(ProcessPlace place, const std::vector<std::string>& words);

}  // namespace fulgur::detail
