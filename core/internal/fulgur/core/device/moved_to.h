#pragma once

#include <ATen/core/Tensor.h>

#include "fulgur/core/state/tensor.h"

namespace fulgur::detail {

/// `value` on `device`. The host waits only if it is the device: LibTorch's copies to host memory that do not block
/// have no values yet.
inline Tensor moved_to(const Tensor& value, at::Device device) {
  return value.to(device, /*non_blocking=*/!device.is_cpu());
}

}  // namespace fulgur::detail
