#include "fulgur/core/system/huge_pages.h"

#include <sys/mman.h>

#include <cstdint>

namespace fulgur::detail {

void advise_huge_pages(const void* memory, size_t bytes) {
  constexpr uintptr_t kPage = 2u << 20;
  const auto start = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t first = (start + kPage - 1) / kPage * kPage, end = (start + bytes) / kPage * kPage;
  if (end > first) madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
}

}  // namespace fulgur::detail
