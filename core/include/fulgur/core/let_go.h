#pragma once

#include <utility>

#include "fulgur/core/batch.h"
#include "fulgur/core/export.h"
#include "fulgur/core/tensor.h"

namespace fulgur {

/// Lets go of a tensor whose memory another stream has used (`record_stream`). LibTorch's allocator records an event
/// when it frees such memory, which fails on a device that has failed: out of a tensor's destructor, the exception
/// would end the process. Here the memory is leaked then. A tensor that somebody else holds too is only let go of.
FULGUR_API void let_go(Tensor& tensor) noexcept;
/// All tensors of the batch; it is empty then.
FULGUR_API void let_go(Batch& batch) noexcept;

/// A batch that is let go of at the end of its life.
class HeldBatch {
 public:
  HeldBatch() = default;
  explicit HeldBatch(Batch batch) : batch_(std::move(batch)) {}
  ~HeldBatch() { let_go(batch_); }
  HeldBatch(const HeldBatch&) = delete;
  HeldBatch& operator=(const HeldBatch&) = delete;
  Batch& get() { return batch_; }

 private:
  Batch batch_;
};

}  // namespace fulgur
