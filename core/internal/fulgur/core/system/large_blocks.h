#pragma once

#include <cstddef>

#include "fulgur/core/export.h"

namespace fulgur::detail {

/// The largest tensor that glibc can keep in its heap: 32 MiB less what alignment and a header may take. It maps larger
/// ones for each use, and the kernel clears all their pages each time.
constexpr size_t kLargestHeapTensor = (size_t{32} << 20) - 4096;

/// Whether the memory of CPU tensors above kLargestHeapTensor is kept when it is freed, up to 1 GiB, for the next
/// tensor of about the same size, which may be smaller by an eighth. What is kept is freed, the oldest blocks first, if
/// the blocks of large tensors and kept ones would exceed the most that large tensors have had at once since this call,
/// and if memory is short. It can add to what other memory takes at its peak. The setting is that of the process. If
/// the program has set another allocator for the CPU, that one stays in use. Call it while no other thread allocates
/// tensors.
FULGUR_API void keep_large_blocks(bool keep);

}  // namespace fulgur::detail
