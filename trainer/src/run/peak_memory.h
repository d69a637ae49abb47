#pragma once

#include <vector>

#include "fulgur/trainer/reports.h"

namespace fulgur::detail {

class Run;

/// Peaks of every rank since `reset_peak_memory`; all ranks must call it.
std::vector<PeakMemory> gather_peak_memory(Run& run);

}  // namespace fulgur::detail
