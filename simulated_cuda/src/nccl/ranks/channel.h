#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace fulgur::simulated_nccl {

/// A byte pipe from one rank to another, in memory that both have mapped. All zero means empty, so that fresh memory
/// needs no constructor. One writer and one reader; neither call blocks.
class Channel {
 public:
  static constexpr size_t kCapacity = size_t{128} << 10;

  /// Writes as much of `bytes` as fits, and returns how much.
  size_t write(const void* bytes, size_t size);
  /// Reads up to `size` bytes, and returns how many.
  size_t read(void* bytes, size_t size);

 private:
  // In separate cache lines, since each is written by another process.
  alignas(64) std::atomic<uint64_t> written_;
  alignas(64) std::atomic<uint64_t> taken_;
  alignas(64) unsigned char ring_[kCapacity];
};

}  // namespace fulgur::simulated_nccl
