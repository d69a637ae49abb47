#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace fulgur::simulated_nccl {

/// A byte pipe from one rank to another, in memory that both have mapped. A pipe of zero bytes is empty, so new memory
/// needs no constructor. It has one writer and one reader; neither function blocks.
class Channel {
 public:
  static constexpr size_t kCapacity = size_t{128} << 10;

  /// Writes as many of the `size` bytes as fit, and returns their number.
  size_t write(const void* bytes, size_t size);
  /// Reads at most `size` bytes, and returns their number.
  size_t read(void* bytes, size_t size);

 private:
  // In separate cache lines, since each is written by another process.
  alignas(64) std::atomic<uint64_t> written_;
  alignas(64) std::atomic<uint64_t> taken_;
  alignas(64) unsigned char ring_[kCapacity];
};

}  // namespace fulgur::simulated_nccl
