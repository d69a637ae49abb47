#pragma once

#include <cstdint>

#include "fulgur/core/export.h"

namespace fulgur {

/// An Optimizer whose step can be recorded and launched again (`capture`). A recorded step keeps using the tensors
/// it was recorded with, so the optimizer reports when its next step would use others.
class FULGUR_API RecordableStep {
 public:
  virtual ~RecordableStep();
  /// Incremented whenever the next step uses other tensors than the previous one: other parameters with gradients,
  /// state that was created or loaded into new tensors, other learning-rate tensors.
  virtual int64_t layout() const = 0;
  /// While true, a step throws an Error instead of creating state: a recording would create it again at each launch.
  virtual void set_recording(bool recording) = 0;
  /// On the CPU: whether steps whose rates are tensors (`Optimizer::keep_rates_on_device`) have the bits of those whose
  /// rates are numbers for parameters of 16-bit dtypes, too. With wider dtypes they must have them.
  virtual bool keeps_bits_of_short_dtypes() const { return false; }
  /// Whether `keep_momentum_on_device` has an effect.
  virtual bool can_keep_momentum_on_device() const { return false; }
  /// From now on each step reads the momentum (the first beta) from the parameters' device, where
  /// `Optimizer::upload_rates` puts it, so that a schedule can change it between launches. Called after
  /// `Optimizer::keep_rates_on_device`.
  virtual void keep_momentum_on_device() {}
};

}  // namespace fulgur
