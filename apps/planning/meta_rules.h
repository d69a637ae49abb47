#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <vector>

namespace fulgur::cli {

using MetaStack = std::vector<c10::IValue>;

/// What an operation computes on `meta`, if LibTorch has no kernel for it there: tensors of the shapes that it returns
/// on a GPU. Its arguments are those of the schema, in order.
using MetaRule = MetaStack (*)(const MetaStack& arguments);

/// The rule of an operation (`aten::convolution`); null if it needs none.
MetaRule meta_rule(const std::string& name);

/// Floating-point operations of matrix products, convolutions and attention; 0 for other operations.
double meta_flops(const std::string& name, const MetaStack& arguments, const MetaStack& results);

}  // namespace fulgur::cli
