#pragma once

#include <memory>

#include "communicator.h"
#include "operation.h"

namespace fulgur::simulated_nccl {

/// Calls between ncclGroupStart and ncclGroupEnd, by thread: they begin together when the outermost group ends.
void start_group();
/// `runs`: false drops the calls instead.
ncclResult_t end_group(bool runs);
bool in_group();

/// Puts the operation on its stream, or into the open group.
ncclResult_t submit(const std::shared_ptr<Communicator>& communicator, const Operation& operation);
/// Waits until all ranks have joined a fresh communicator, at once or at the end of the open group: its ranks may be
/// made by one thread.
ncclResult_t join(const std::shared_ptr<Communicator>& communicator);

}  // namespace fulgur::simulated_nccl
