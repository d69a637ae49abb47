#pragma once

#include "run/services.h"

namespace fulgur::detail {

/// Trains until a limit, a stop request or a signal. Expects the run to be set up and restored.
void fit_loop(RunState& run, Services& services, bool resumed);

}  // namespace fulgur::detail
