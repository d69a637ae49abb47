#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace fulgur::detail {

/// A hint for a LibTorch error in a step, from its text; nullopt if the error is clear by itself. Such errors name
/// operations and shapes, but not the user's mistake.
std::optional<std::string> hint_for(std::string_view error);

}  // namespace fulgur::detail
