#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace fulgur::detail {

/// The operation of LibTorch's dispatcher that has this name, such as `fulgur_nn::norm_pool`, and no overload name.
/// Throws if it is not registered, or has another type.
template <class Function>
c10::TypedOperatorHandle<Function> typed_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Function>();
}

}  // namespace fulgur::detail
