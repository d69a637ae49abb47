#pragma once

#include <map>
#include <string>
#include <vector>

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "snapshot/copy_memory.h"
#include "snapshot/device_copies.h"

namespace fulgur::detail {

/// Copies of all tensors of a checkpoint in host memory, which is reused: for host tensors if place, shape and dtype
/// are the same. Memory that the last four snapshots did not need is released.
class TensorSnapshot {
 public:
  /// `content`, and `facts` if any, with each tensor replaced by a copy in memory of this object: valid until the next
  /// call. Copies from CUDA devices may still be in progress (`DeviceCopies`).
  CheckpointContent take(const CheckpointContent& content, StateTree* facts = nullptr, const IsLate& is_late = {});

  /// Waits for copies in progress. May be called on another thread than take().
  void finish() { devices_.finish(); }
  /// Like DeviceCopies::before_writes.
  void before_writes() { devices_.before_writes(); }

 private:
  struct Buffer {
    Tensor tensor;
    uint64_t last_used = 0;
  };
  Tensor copy(const std::string& place, const Tensor& tensor);
  void copy_tree(const std::string& place, StateTree& tree);

  std::map<std::string, Buffer> buffers_;
  std::vector<MemoryCopy> plain_;  // of this snapshot, from host memory
  DeviceCopies devices_;
  uint64_t count_ = 0;
};

}  // namespace fulgur::detail
