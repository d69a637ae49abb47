#pragma once

#include <atomic>

#include "fulgur/core/export.h"

namespace fulgur {

/// The first signal that asked this process to stop (SIGINT, SIGTERM or SIGHUP) since its run began; 0: none. The run's
/// handler sets it. Code that waits for other processes before the loops must look at it and throw `Interrupted`.
FULGUR_API std::atomic<int>& stop_signal() noexcept;

}  // namespace fulgur
