#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

#include "ranks/communicator.h"
#include "work/operation.h"

namespace fulgur::simulated_nccl {

/// Enqueues the operations on a stream as one piece of work, as NCCL makes one kernel of a group's calls. They all make
/// progress together, so that sends and receives of a group cannot deadlock.
ncclResult_t enqueue(const std::shared_ptr<Communicator>& communicator, std::vector<Operation> operations,
                     cudaStream_t stream);

}  // namespace fulgur::simulated_nccl
