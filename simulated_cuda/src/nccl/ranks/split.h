#pragma once

#include <nccl.h>

#include <vector>

#include "ranks/communicator.h"

namespace fulgur::simulated_nccl {

/// Creates a communicator of those `members` of the parent that pass the same color, in the order of their keys. Waits
/// for all members. A rank with a negative color must also call it, but gets no communicator.
ncclResult_t split(Communicator& parent, const std::vector<int>& members, int color, int key, ncclComm_t* made);

}  // namespace fulgur::simulated_nccl
