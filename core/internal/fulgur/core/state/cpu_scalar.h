#pragma once

#include <ATen/core/Tensor.h>

#include "fulgur/core/state/tensor.h"

namespace fulgur::detail {

/// The value of a scalar on the CPU, read directly if possible: `item()` goes through the dispatcher, which costs
/// more than the work around it.
inline double cpu_scalar(const Tensor& scalar) {
  if (scalar.layout() == at::kStrided && !scalar.is_neg()) {
    if (scalar.scalar_type() == at::kFloat) return static_cast<double>(*scalar.const_data_ptr<float>());
    if (scalar.scalar_type() == at::kDouble) return *scalar.const_data_ptr<double>();
  }
  return scalar.item<double>();
}

}  // namespace fulgur::detail
