#pragma once

#include <cstdint>

#include "lowering.h"
#include "recorded_call.h"

namespace fulgur::detail {

struct MemoryPlan {
  int64_t planned_bytes = 0, separate_bytes = 0, peak_live_bytes = 0;
};

/// Puts the intermediate results into one block of memory, in which those that are not alive at the same time overlap.
/// Constants, exchanged results, and storages to which something outside the recording refers keep their memory. Each
/// moved storage keeps the block alive. Values are not moved. Without `move`, all keep theirs. `calls` were recorded.
MemoryPlan plan_memory(size_t calls, const Lowered& lowered, bool move);

}  // namespace fulgur::detail
