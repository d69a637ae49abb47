#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <algorithm>
#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

#include "fulgur/core/state/tensor.h"

namespace fulgur::detail {

/// Whether it has one of these names, whatever its overload.
inline bool is_one_of(const c10::OperatorHandle& op, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, std::string_view(op.schema().name())) != names.end();
}

inline std::span<const c10::IValue> arguments_of(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const size_t count = op.schema().arguments().size();
  return {stack.data() + (stack.size() - count), count};
}

/// Whether the operation writes to this argument.
inline bool is_written(const c10::Argument& argument) {
  return argument.alias_info() && argument.alias_info()->isWrite();
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

/// Replaces each defined tensor of the value by `change` of it.
template <class Change>
void change_tensors_of(c10::IValue& value, const Change& change) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) value = change(value.toTensor());
  } else if (value.isTensorList()) {
    std::vector<Tensor> tensors = value.toTensorVector();
    for (Tensor& tensor : tensors)
      if (tensor.defined()) tensor = change(tensor);
    value = std::move(tensors);
  } else if (value.isList()) {
    // A list of optional tensors, which the caller may have, too.
    c10::List<c10::IValue> list = value.toList().copy();
    for (size_t i = 0; i < list.size(); ++i)
      if (const c10::IValue& element = list.get(i); element.isTensor() && element.toTensor().defined())
        list.set(i, change(element.toTensor()));
    value = list;
  }
}

}  // namespace fulgur::detail
