#pragma once

#include "fulgur/core/state/tensor.h"

namespace fulgur::detail {

/// Sums of the bits of values on a device, in their order, which show that something has written other values.
class BitChecksum {
 public:
  /// A number on the device of `values`, which are contiguous and have a multiple of four bytes; does not wait for it.
  /// The same values in another order have another number.
  Tensor of(const Tensor& values);

 private:
  Tensor factors_;
};

}  // namespace fulgur::detail
