#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace fulgur::detail {

/// Hint for an option of the Trainer among those of a strategy, where other libraries have it; for
/// `Fields::hint_for_unknown`.
std::optional<std::string> hint_for_trainer_key(std::string_view key);

}  // namespace fulgur::detail
