#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include "fulgur/core/export.h"

namespace fulgur {

/// Automatic mixed precision for this thread during its lifetime, like Python's `torch.autocast`: operations that
/// benefit run in `dtype`, those that need the range run in float32. Guards nest; `enabled = false` disables autocast
/// inside an enabled region. Cached weight casts are dropped when the outermost guard ends and when the dtype changes.
class FULGUR_API Autocast {
 public:
  /// `dtype` is kBFloat16 or kHalf; with other types LibTorch throws at the first operation.
  Autocast(c10::DeviceType device, c10::ScalarType dtype, bool enabled = true);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  c10::DeviceType device_;
  c10::ScalarType dtype_before_;
  bool enabled_before_, cache_before_;
};

}  // namespace fulgur
