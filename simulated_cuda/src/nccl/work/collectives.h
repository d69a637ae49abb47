#pragma once

#include <vector>

#include "ranks/communicator.h"
#include "work/operation.h"

namespace fulgur::simulated_nccl {

/// Computes all operations on the calling thread. Returns when they are done, or when the communicator was aborted.
void compute(Communicator& communicator, const std::vector<Operation>& operations);

}  // namespace fulgur::simulated_nccl
