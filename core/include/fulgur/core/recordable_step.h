#pragma once

#include <cstdint>

#include "fulgur/core/export.h"

namespace fulgur {

/// An Optimizer whose step can be recorded and launched again (`cuda_graph`). A recorded step goes on using the tensors
/// that it used when it was recorded, so the optimizer says when a step of its own would use others.
class FULGUR_API RecordableStep {
 public:
  virtual ~RecordableStep();
  /// Rises whenever the next step uses other tensors than the one before: other parameters with gradients, state that
  /// was made or loaded into new tensors, other learning-rate tensors.
  virtual int64_t layout() const = 0;
  /// While true, a step throws an Error instead of making state: recorded, that would be made again by each launch.
  virtual void set_recording(bool recording) = 0;
  /// From now on each step reads the momentum (the first beta) from the parameters' device, where
  /// `Optimizer::upload_rates` puts it, so that a schedule can move it between launches. Called after
  /// `Optimizer::keep_rates_on_device`. False if the optimizer cannot.
  virtual bool keep_momentum_on_device() { return false; }
};

}  // namespace fulgur
