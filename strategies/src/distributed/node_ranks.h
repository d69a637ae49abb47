#pragma once

#include <string>
#include <vector>

#include "fulgur/core/contracts/process_place.h"

namespace fulgur::detail {

/// What a rank reports about its node, as text: the machine's name, its local rank, and the number of ranks there
/// according to its environment.
std::string node_identity(const std::string& host, const ProcessPlace& place);

/// `place` with correct node numbers, from the reports of all ranks in rank order: nodes are numbered by their first
/// rank, and may have different numbers of ranks, in any order. Throws a DistributedError if ranks that share a name
/// cannot share a node.
ProcessPlace number_nodes(ProcessPlace place, const std::vector<std::string>& words);

}  // namespace fulgur::detail
