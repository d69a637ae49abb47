#pragma once

#include <optional>

#include "operations/operator_arguments.h"
#include "tensor/divided_layers.h"
#include "tensor/divided_values.h"

namespace fulgur::detail {

/// The divided tensors that an operation reads.
struct DividedReads {
  const DividedParameter* parameter = nullptr;
  size_t at = 0;           ///< the argument that is the parameter
  bool is_second = false;  ///< another argument is a weight, too
  const DividedValues::Value* value = nullptr;
  std::optional<at::Device> device = {};  ///< of the value
};

}  // namespace fulgur::detail
