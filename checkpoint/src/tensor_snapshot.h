#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <map>
#include <string>
#include <vector>

#include "copy_memory.h"
#include "fulgur/checkpoint/checkpoint_folder.h"

namespace fulgur::detail {

/// Copies of all tensors of a checkpoint in host memory. The memory is used again for tensors of the same place, shape and
/// dtype; what the last four snapshots did not need is given back.
class TensorSnapshot {
 public:
  /// `content` with each tensor replaced by a copy, in memory of this object: valid until the next call. Copies from CUDA
  /// devices may be under way still, into pinned memory; what the current stream does next waits for them.
  CheckpointContent take(const CheckpointContent& content);

  /// Waits for copies that are under way. May be called on another thread than take().
  void finish();

 private:
  struct Buffer {
    Tensor tensor;
    bool pinned = false;
    uint64_t last_used = 0;
  };
  Tensor copy(const std::string& place, const Tensor& tensor);
  void copy_tree(const std::string& place, StateTree& tree);
  const c10::Stream& side_stream(c10::Device device);
  void let_current_streams_wait();

  std::map<std::string, Buffer> buffers_;
  std::vector<c10::Stream> side_streams_;  // one for each device
  std::vector<MemoryCopy> plain_;          // of this snapshot, from memory of the host
  std::vector<c10::Event> copied_;         // of this snapshot, one for each device
  uint64_t count_ = 0;
};

}  // namespace fulgur::detail
