#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

namespace fulgur::cli {

/// What memory of the device `meta` is for.
enum class MemoryUse { state, gradients, step };

/// Counts the memory of the device `meta`: tensors there are as large as on a GPU, in multiples of 512 bytes. Their
/// memory is reserved, and takes none of the machine until it is written to, so that code that fills a tensor by hand
/// works. One exists in the process; it is never destroyed.
class MetaMemory {
 public:
  static MetaMemory& instance();

  /// What the blocks that are made from now on are for.
  void set_use(MemoryUse use);
  /// What this tensor's block is for.
  void mark(const at::Tensor& tensor, MemoryUse use);
  int64_t bytes(MemoryUse use) const;
  /// The most bytes of all uses since `begin_peaks`.
  int64_t peak() const;
  /// The same without gradients.
  int64_t peak_without_gradients() const;
  /// The most bytes of blocks, which are larger than their tensors: `BlockPools`.
  int64_t peak_of_blocks() const;
  /// Of the memory that LibTorch's allocator took for them so far.
  int64_t reserved() const;
  void begin_peaks();

 private:
  MetaMemory();
};

}  // namespace fulgur::cli
