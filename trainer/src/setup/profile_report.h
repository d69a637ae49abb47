#pragma once

#include "run/run_state.h"

namespace fulgur::detail {

/// Creates the profiler of the run, if it has one, and starts it. Call before the strategy starts to train.
void start_profiler(RunState& run);

/// Stops the profiler. Rank 0 prints what it has measured, and writes it as `profile.json` into the run folder, or
/// under another name if that exists (`free_profile_path`); a run that only measures also prints what bounds it. Does
/// nothing if no profiler was started. Call it after `Strategy::abandon`: the device may wait for other ranks until
/// then.
void report_profile(RunState& run);

}  // namespace fulgur::detail
