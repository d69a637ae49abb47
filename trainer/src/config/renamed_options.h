#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace fulgur::config {

/// What to say of a key of `trainer:` that Lightning has, or had, and this project has not; nothing for other keys.
std::optional<std::string> hint_for_trainer_key(std::string_view key);

/// The same for top keys of a config.
std::optional<std::string> hint_for_top_key(std::string_view key);

}  // namespace fulgur::config
