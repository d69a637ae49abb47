#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fulgur/core/state/tensor.h"
#include "tensor/divided_values.h"

namespace fulgur::detail {

/// A tensor that an operation reads.
struct WidthRead {
  size_t argument = 0;
  Tensor tensor;
  std::vector<int64_t> sizes;        ///< before the operation, which may change them
  std::optional<Division> division;  ///< nullopt: all ranks have it
  /// The divided dimension, counted from the last one: -1, …
  int64_t from_last() const { return division->dim - static_cast<int64_t>(sizes.size()); }
};

/// An operation that reads values of which each rank has a part.
struct WidthCall {
  const c10::OperatorHandle& op;
  std::span<const c10::IValue> arguments;
  std::vector<WidthRead> reads;
  std::string name;  ///< without namespace, overload and the sign of operations in place

  const WidthRead* at(size_t argument) const;
  /// The argument of this name; nullptr: it has no value.
  const c10::IValue* named(std::string_view argument) const;
  /// Those of the argument `dim` or `dims` of a tensor with this many dimensions; nullopt: it names none.
  std::optional<std::vector<int64_t>> dims(int64_t count) const;
};

/// What is divided in a result; nullopt: it cannot be told.
using WidthResult = std::function<std::optional<Division>(const Tensor& result)>;

/// Of operations that are right on parts; empty: it is not known to be. One rule for each family.
WidthResult width_rule(const WidthCall& call);
WidthResult width_of_layout(const WidthCall& call);
WidthResult width_of_product(const WidthCall& call);
WidthResult width_of_einsum(const WidthCall& call);

}  // namespace fulgur::detail
