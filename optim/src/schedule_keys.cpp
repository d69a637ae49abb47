#include "schedule_keys.h"

#include <algorithm>
#include <array>

#include "fulgur/core/text/text.h"

namespace fulgur::detail {

std::optional<std::string> hint_for_schedule_key(std::string_view key) {
  static constexpr std::array<std::string_view, 5> kBeside{"interval", "frequency", "monitor", "strict", "name"};
  if (std::ranges::find(kBeside, key) == kBeside.end()) return std::nullopt;
  return cat("in a config, write `lr_scheduler_", key,
             "` at the top level, next to `lr_scheduler`; in C++ it is in SchedulerConfig");
}

}  // namespace fulgur::detail
