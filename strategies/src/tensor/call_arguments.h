#pragma once

#include <optional>

#include "operations/operator_arguments.h"
#include "tensor/divided_layers.h"
#include "tensor/divided_values.h"

namespace fulgur::detail {

/// Whether the last dimension of the result may be another one than that of the arguments, also if it is as long.
bool mixes_dimensions(const c10::OperatorHandle& op);

/// The divided tensors that an operation reads.
struct DividedReads {
  const DividedParameter* parameter = nullptr;
  size_t at = 0;           ///< the argument that is the parameter
  bool is_second = false;  ///< another argument is a weight, too
  const DividedValues::Value* value = nullptr;
  std::optional<at::Device> device = {};  ///< of the value
};

}  // namespace fulgur::detail
