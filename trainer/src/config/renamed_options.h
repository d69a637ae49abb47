#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace fulgur::config {

/// Hint for a key of `trainer:` that Lightning has, or had, but this project does not, and for an option of a strategy
/// or a precision; nullopt for other keys.
std::optional<std::string> hint_for_trainer_key(std::string_view key);

/// The same for top-level keys of a config.
std::optional<std::string> hint_for_top_key(std::string_view key);

}  // namespace fulgur::config
