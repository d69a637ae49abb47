#pragma once

#include <c10/core/Storage.h>

#include <vector>

#include "fulgur/core/state/batch.h"

namespace fulgur {

/// Batch memory that is reused once no tensor of it is held: faulting in fresh pages costs more than the copy into
/// them. Each batch gets its own tensors over that memory, so what a user does to one (`requires_grad_`, `resize_`)
/// ends with it. Use it from one thread; its batches may be used by others.
class BatchBuffers {
 public:
  /// `prototype` has one row; `rows` is the maximum for `take`; the memory of at most `limit` batches is kept.
  BatchBuffers(Batch prototype, int64_t rows, size_t limit, bool pinned);
  /// A batch with `rows` rows and undefined content.
  Batch take(int64_t rows);
  const Batch& prototype() const { return prototype_; }
  int64_t rows() const { return rows_; }
  bool pinned() const { return pinned_; }

 private:
  using Storages = std::vector<c10::Storage>;
  Storages& free_storages();

  Batch prototype_;
  int64_t rows_;
  size_t limit_;
  bool pinned_;
  std::vector<size_t> row_bytes_;  ///< by entry; 0 if its memory cannot be kept
  std::vector<Storages> ring_;
  size_t next_ = 0;
};

}  // namespace fulgur
