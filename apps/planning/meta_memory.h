#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

namespace fulgur::cli {

/// What memory of the device `meta` is for.
enum class MemoryUse { state, gradients, step };

/// Counts the memory of the device `meta`: tensors there are as large as on a GPU, in blocks of 512 bytes like those of
/// LibTorch's CUDA allocator. Their memory is reserved, and takes none of the machine until it is written to, so that
/// code that fills a tensor by hand works. One exists in the process; it is never destroyed.
class MetaMemory {
 public:
  static MetaMemory& instance();

  /// What the blocks that are made from now on are for.
  void set_use(MemoryUse use);
  /// What this tensor's block is for.
  void mark(const at::Tensor& tensor, MemoryUse use);
  int64_t bytes(MemoryUse use) const;
  /// The most bytes since `begin_peaks`, of all uses but the state's.
  int64_t peak_of_step() const;
  /// The same without gradients.
  int64_t peak_without_gradients() const;
  void begin_peaks();

 private:
  MetaMemory();
};

}  // namespace fulgur::cli
