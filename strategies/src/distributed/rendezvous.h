#pragma once

#include <cstdint>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "fulgur/core/contracts/process_place.h"

namespace fulgur::detail {

/// The store of the run, once all ranks are connected to it. Throws a DistributedError that names address, port and
/// rank, and, if only some ranks arrived in time, the missing ones. Throws Interrupted if this process, or another rank
/// that waits here, was asked to stop before all had arrived.
c10::intrusive_ptr<c10d::Store> meet(const ProcessPlace& place, double timeout_s);

/// The same as `meet`, in an open store. `number` counts the runs of this process. The number of requests per rank does
/// not grow with the number of ranks, except while waiting: one per poll.
c10::intrusive_ptr<c10d::Store> meet_in(const c10::intrusive_ptr<c10d::Store>& store, const ProcessPlace& place,
                                        double timeout_s, int64_t number);

}  // namespace fulgur::detail
