#pragma once

#include <fulgur/core/state/tensor.h>

#include <functional>
#include <string>
#include <vector>

/// The sweep over operations on values of which each rank has a part.
namespace width_sweep {

/// Values that all ranks have, of which operations join some with parts.
struct Whole {
  fulgur::Tensor one;    ///< [1], a parameter
  fulgur::Tensor rows;   ///< in the shape of the value, with 1 in place of the divided dimension
  fulgur::Tensor width;  ///< all elements of the divided dimension, and 1 in place of the others
};

/// An operation between a layer divided by column and one divided by row.
struct Operation {
  /// The name of LibTorch's operation, which errors contain, then a colon and what is done.
  std::string name;
  /// It must be computed; otherwise it may be refused.
  bool must = false;
  /// Returns a value of the shape of `value`; of `fused` outputs, one of its parts.
  std::function<fulgur::Tensor(const fulgur::Tensor& value, const Whole& whole)> apply;
};

/// On a value of 2 to 4 dimensions, of which `divided` has the width.
std::vector<Operation> operations(int64_t dims, int64_t divided);
/// On a value of heads: (samples, heads, tokens, size).
std::vector<Operation> operations_on_heads();
/// On the outputs of a layer with three parts: (samples, tokens, 3 · width).
std::vector<Operation> operations_on_fused();

}  // namespace width_sweep
