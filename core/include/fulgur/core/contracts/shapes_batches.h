#pragma once

#include "fulgur/core/export.h"
#include "fulgur/core/state/batch.h"

namespace fulgur {

class RunContext;

/// Implemented by a callback that changes training batches before they are trained on.
class FULGUR_API ShapesBatches {
 public:
  virtual ~ShapesBatches();
  /// Returns the batch to train on instead of `batch`. Called once for each training batch that the callback's filter
  /// passes, before the transfer hooks: the batch is on the host, or on the device if the loader has prefetched it
  /// there. Everything that follows sees the returned batch, including the count of samples. `batch` must not be
  /// written to; the returned one may share its tensors. `run.progress()` counts the batches and steps before this one.
  virtual Batch shape_batch(RunContext& run, Batch batch) = 0;
};

}  // namespace fulgur
