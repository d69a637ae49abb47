#include "profiling/actions.h"

#include "fulgur/core/text/class_name.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {

const ProfiledAction& Actions::action(const std::type_info* type, const char* hook) {
  const auto [found, is_new] = actions_.try_emplace({type, hook});
  if (is_new)
    found->second = {.name = type ? cat(class_name(*type), ".", hook) : std::string(hook),
                     .index = static_cast<int64_t>(actions_.size()) - 1};
  return found->second;
}

}  // namespace fulgur::detail
