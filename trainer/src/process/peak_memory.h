#pragma once

#include <vector>

#include "fulgur/core/contracts/run_context.h"
#include "fulgur/trainer/reports.h"

namespace fulgur::detail {

/// Peaks of every rank since `reset_peak_memory`; all ranks must call it.
std::vector<PeakMemory> gather_peak_memory(RunContext& run);

}  // namespace fulgur::detail
