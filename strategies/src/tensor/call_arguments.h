#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <span>
#include <string_view>

#include "tensor/divided_layers.h"
#include "tensor/divided_values.h"

namespace fulgur::detail {

/// Whether it has one of these names, whatever its overload.
inline bool is_one_of(const c10::OperatorHandle& op, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, std::string_view(op.schema().name())) != names.end();
}

inline std::span<const c10::IValue> arguments_of(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const size_t count = op.schema().arguments().size();
  return {stack.data() + (stack.size() - count), count};
}

/// `use` gets each defined tensor of the value.
template <class Use>
void each_tensor_of(const c10::IValue& value, const Use& use) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) use(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef())
      if (element.isTensor() && element.toTensor().defined()) use(element.toTensor());
  }
}

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
