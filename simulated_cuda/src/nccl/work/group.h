#pragma once

#include <memory>

#include "ranks/communicator.h"
#include "work/operation.h"

namespace fulgur::simulated_nccl {

/// Each thread has its own group of calls, between ncclGroupStart and ncclGroupEnd. They start together when the
/// outermost group ends.
void start_group();
/// If `runs` is false, discards the calls.
ncclResult_t end_group(bool runs);
bool in_group();

/// Enqueues the operation on its stream, or adds it to the open group.
ncclResult_t submit(const std::shared_ptr<Communicator>& communicator, const Operation& operation);
/// Waits until all ranks have joined a new communicator, immediately or at the end of the open group: one thread may
/// create all ranks.
ncclResult_t join(const std::shared_ptr<Communicator>& communicator);

}  // namespace fulgur::simulated_nccl
