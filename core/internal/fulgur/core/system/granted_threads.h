#pragma once

#include "fulgur/core/export.h"

namespace fulgur::detail {

/// How many of `threads` threads OpenMP gives an operation of this thread. oneDNN divides a product among as many as it
/// may ask for, and leaves out the parts of threads that it does not get, so LibTorch must not ask for more. Of this
/// thread, OMP_DYNAMIC and OMP_MAX_ACTIVE_LEVELS=0 are switched off; OMP_THREAD_LIMIT is what remains.
FULGUR_API int granted_threads(int threads);

}  // namespace fulgur::detail
