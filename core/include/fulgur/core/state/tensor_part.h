#pragma once

#include <cstdint>

#include "fulgur/core/export.h"
#include "fulgur/core/state/tensor.h"

namespace fulgur {

/// What one process has of a tensor that is divided among processes.
struct FULGUR_API TensorPart {
  /// Stands for the whole tensor in a state: on the device `meta`, with its dtype, shape and strides, which are dense.
  Tensor whole;
  int64_t begin = 0;  ///< the first element, in the order of the whole tensor's memory
  Tensor values;      ///< [count] elements from there on; contiguous
};

}  // namespace fulgur
