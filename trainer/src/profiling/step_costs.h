#pragma once

#include <vector>

#include "profiling/bottleneck.h"
#include "profiling/simple_profiler.h"

namespace fulgur::detail {

/// The means over `steps` training batches that took `seconds` together, from what the profiler has measured in them.
/// `samples` of a batch are not known to it.
StepCosts step_costs(const std::vector<SimpleProfiler::Row>& rows, int64_t steps, double seconds);

}  // namespace fulgur::detail
