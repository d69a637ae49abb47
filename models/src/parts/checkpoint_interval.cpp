#include "parts/checkpoint_interval.h"

#include <string_view>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {

int64_t checkpoint_interval(const std::string& text, const char* component) {
  constexpr std::string_view kEvery = "every_";
  if (text == "none") return 0;
  if (text == "all") return 1;
  if (text.starts_with(kEvery))
    if (const auto every = parse_whole<int64_t>(std::string_view(text).substr(kEvery.size())); every && *every >= 2)
      return *every;
  throw ConfigError(cat("[models.", component,
                        "] activation_checkpointing must be none, all or every_N with N of at least 2 (every_2); got '",
                        escape_controls(text), "'."));
}

}  // namespace fulgur::detail
