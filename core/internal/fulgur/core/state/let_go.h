#pragma once

#include <utility>

#include "fulgur/core/export.h"
#include "fulgur/core/state/batch.h"
#include "fulgur/core/state/tensor.h"

namespace fulgur {

/// Releases a tensor whose memory another stream has used (`record_stream`). LibTorch's allocator records an event when
/// it frees such memory, which fails on a failed device: thrown from a tensor's destructor, that exception would end
/// the process. In that case the memory is leaked instead. If the tensor has other owners, only this reference is
/// dropped.
FULGUR_API void let_go(Tensor& tensor) noexcept;
/// Releases all tensors of the batch and leaves it empty.
FULGUR_API void let_go(Batch& batch) noexcept;

/// A batch that is released with `let_go` on destruction.
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
