#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace fulgur::simulated_nccl {

/// A pipe of bytes from one rank to another, in memory that both have mapped. All zero is an empty one, so that fresh
/// memory needs no constructor. One writer and one reader; neither call waits.
class Channel {
 public:
  static constexpr size_t kCapacity = size_t{128} << 10;

  /// Puts as much of `bytes` in as there is room for, and returns how much.
  size_t write(const void* bytes, size_t size);
  /// Takes up to `size` bytes out, and returns how many.
  size_t read(void* bytes, size_t size);

 private:
  // In cache lines of their own, since each is written by another process.
  alignas(64) std::atomic<uint64_t> written_;
  alignas(64) std::atomic<uint64_t> taken_;
  alignas(64) unsigned char ring_[kCapacity];
};

}  // namespace fulgur::simulated_nccl
