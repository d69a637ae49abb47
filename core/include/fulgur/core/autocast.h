#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include "fulgur/core/export.h"

namespace fulgur {

/// Automatic mixed precision of this thread while it lives, as Python's `torch.autocast`: operations that gain by it
/// compute in `dtype`, those that need the range in float32. Guards nest; `enabled = false` switches it off inside
/// another. The copies of weights that it keeps are dropped when the outermost one ends, and where the format changes.
class FULGUR_API Autocast {
 public:
  /// `dtype` is kBFloat16 or kHalf; other types are an error of LibTorch at the first operation.
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
