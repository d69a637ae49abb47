#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>

#include "planning/meta_shapes.h"

namespace fulgur::cli {

/// The rule of an operation; null if it needs none.
MetaRule meta_rule(const c10::FunctionSchema& operation);

/// Floating-point operations of matrix products, convolutions and attention; 0 for other operations.
double meta_flops(const std::string& name, const MetaStack& arguments, const MetaStack& results);

}  // namespace fulgur::cli
