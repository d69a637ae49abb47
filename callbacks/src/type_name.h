#pragma once

#include <string>
#include <string_view>

namespace fulgur::detail {

/// A class name for display: without namespaces, and without the `Impl` of LibTorch's layers, also in template
/// arguments. `torch::nn::LinearImpl` becomes `Linear`.
std::string short_type_name(std::string_view name);

}  // namespace fulgur::detail
