#pragma once

#include <cstdint>

#include "fulgur/core/export.h"

namespace fulgur {

/// The number of CPUs that this process may use, by its affinity; at least 1.
FULGUR_API int64_t usable_cpus();

}  // namespace fulgur
