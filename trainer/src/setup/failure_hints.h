#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace fulgur::detail {

/// What to do about an error of LibTorch's in a step, by its text; nothing where that says it all. Such errors name
/// operations and shapes, not what a user did.
std::optional<std::string> hint_for(std::string_view error);

}  // namespace fulgur::detail
