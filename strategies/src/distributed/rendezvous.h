#pragma once

#include <cstdint>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "fulgur/core/process_place.h"

namespace fulgur::detail {

/// The store of the run, once all ranks are at it. Throws a DistributedError that names address, port and rank, and
/// where only some came in time, which are missing.
c10::intrusive_ptr<c10d::Store> meet(const ProcessPlace& place, double timeout_s);

/// The same in a store that is open. `number` counts the runs of this process. Requests of a rank do not grow with the
/// number of ranks, but for those that wait: one each time that it looks.
c10::intrusive_ptr<c10d::Store> meet_in(const c10::intrusive_ptr<c10d::Store>& store, const ProcessPlace& place,
                                        double timeout_s, int64_t number);

}  // namespace fulgur::detail
