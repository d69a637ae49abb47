#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "fulgur/core/export.h"

namespace fulgur::nn {

/// Calls `work` with 0 to `count` - 1 concurrently: 0 on the calling thread, the others on pooled threads. These
/// inherit the caller's thread state: grad and inference mode, autocast, and whether a checkpoint recomputes; but not
/// its current device and streams, nor its SavedTensorsHooks (a checkpoint around the call drops nothing that other
/// threads save). Returns when all have ended; then rethrows the exception with the lowest index. Callable from any
/// thread, also from inside `work`. Throws a std::system_error, without calling `work`, if the system provides no more
/// threads.
FULGUR_API void parallel_apply(size_t count, const std::function<void(size_t)>& work);

/// Sizes of at most `parts` parts of `samples`, which differ by at most one, the larger first; none is empty.
FULGUR_API std::vector<int64_t> even_parts(int64_t samples, int64_t parts);

}  // namespace fulgur::nn
