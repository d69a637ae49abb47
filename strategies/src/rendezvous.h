#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "fulgur/core/process_place.h"

namespace fulgur::detail {

/// The store of the run, once all ranks are at it. Throws a DistributedError that names address, port and rank, and where
/// only some came in time, which are missing.
c10::intrusive_ptr<c10d::Store> meet(const ProcessPlace& place, double timeout_s);

}  // namespace fulgur::detail
