#pragma once

#include <cstdint>

#include "fulgur/core/export.h"

namespace fulgur::detail {

/// Lets the threads of LibTorch's operations sleep soon, instead of spinning for milliseconds, when they wait for each
/// other: if other processes use the CPUs, a spinning thread takes the time from the one that it waits for. Works once
/// per process, for its lifetime, and keeps some sleeping threads for it; `threads`: the number that operations use,
/// more than one. Has no effect if OMP_WAIT_POLICY or GOMP_SPINCOUNT is set, or if LibTorch's OpenMP is not libgomp.
FULGUR_API void wait_without_spinning(int64_t threads);

}  // namespace fulgur::detail
