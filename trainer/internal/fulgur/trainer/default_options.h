#pragma once

#include <optional>
#include <string_view>

#include "fulgur/core/export.h"
#include "fulgur/core/options/config_node.h"

namespace fulgur::detail {

/// The options of the component `class_path` with their defaults, as in `init_args`; nullopt for an unknown class, such
/// as one of a plug-in that is not loaded. An option that is required is null.
FULGUR_API std::optional<ConfigNode> default_options(std::string_view class_path);

}  // namespace fulgur::detail
