#pragma once

// Independent of LibTorch.
#include <cstddef>
#include <vector>

namespace fulgur::detail {

struct MemoryCopy {
  void* to = nullptr;
  const void* from = nullptr;
  size_t bytes = 0;
};

/// Performs all copies and returns. Large amounts are copied by several threads, up to four cores of this process: one
/// core alone does not saturate the memory bandwidth.
void copy_memory(const std::vector<MemoryCopy>& copies);

}  // namespace fulgur::detail
