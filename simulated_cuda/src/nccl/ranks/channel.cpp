#include "ranks/channel.h"

#include <algorithm>
#include <cstring>

namespace fulgur::simulated_nccl {

size_t Channel::write(const void* bytes, size_t size) {
  const uint64_t at = written_.load(std::memory_order_relaxed);
  size = std::min<size_t>(size, kCapacity - (at - taken_.load(std::memory_order_acquire)));
  const size_t begin = at % kCapacity, first = std::min(size, kCapacity - begin);
  if (first > 0) std::memcpy(ring_ + begin, bytes, first);
  if (size > first) std::memcpy(ring_, static_cast<const char*>(bytes) + first, size - first);
  written_.store(at + size, std::memory_order_release);
  return size;
}

size_t Channel::read(void* bytes, size_t size) {
  const uint64_t at = taken_.load(std::memory_order_relaxed);
  size = std::min<size_t>(size, written_.load(std::memory_order_acquire) - at);
  const size_t begin = at % kCapacity, first = std::min(size, kCapacity - begin);
  if (first > 0) std::memcpy(bytes, ring_ + begin, first);
  if (size > first) std::memcpy(static_cast<char*>(bytes) + first, ring_, size - first);
  taken_.store(at + size, std::memory_order_release);
  return size;
}

}  // namespace fulgur::simulated_nccl
