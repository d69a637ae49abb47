#pragma once

#include "run/services.h"

namespace fulgur::detail {

/// Call after SIGUSR1, which announces that the job's time runs out: saves, and under Slurm requeues the job if
/// `requeues`.
void save_for_signal(RunState& run, Services& services, bool requeues);

}  // namespace fulgur::detail
