#pragma once

// Free of LibTorch.
#include <cstddef>
#include <vector>

namespace fulgur::detail {

struct MemoryCopy {
  void* to = nullptr;
  const void* from = nullptr;
  size_t bytes = 0;
};

/// Makes all copies and returns. Many bytes are copied by several threads, up to four cores of this process: one core
/// alone does not use all of the memory's bandwidth.
void copy_memory(const std::vector<MemoryCopy>& copies);

}  // namespace fulgur::detail
