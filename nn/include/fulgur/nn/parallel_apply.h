#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "fulgur/core/export.h"

namespace fulgur::nn {

/// Calls `work` with 0 to `count` - 1 at the same time: 0 on the calling thread, the others on threads that are kept
/// from call to call. These see what the caller has set for its thread: grad and inference mode, autocast, and whether
/// a checkpoint recomputes; not its current device and streams, nor its SavedTensorsHooks (a checkpoint around the call
/// drops nothing that other threads save). Returns when all have ended; then throws what the lowest of them has thrown.
/// From any thread, also from inside `work`. Throws a std::system_error, without a call of `work`, where the system
/// gives no more threads.
FULGUR_API void parallel_apply(size_t count, const std::function<void(size_t)>& work);

/// Sizes of at most `parts` parts of `samples`, which differ by one at most, the larger first; none is empty.
FULGUR_API std::vector<int64_t> even_parts(int64_t samples, int64_t parts);

}  // namespace fulgur::nn
