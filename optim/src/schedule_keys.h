#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace fulgur::detail {

/// Hint for a key of `SchedulerConfig` among a schedule's own options; for `Fields::hint_for_unknown`.
std::optional<std::string> hint_for_schedule_key(std::string_view key);

}  // namespace fulgur::detail
