#pragma once

#include "run/run_state.h"

namespace fulgur::detail {

/// Prints the table of `trainer.profiler: simple` on rank 0, and writes it as `profile.json` into the run folder. Does
/// nothing if the profiler was not started.
void report_actions(RunState& run);

}  // namespace fulgur::detail
