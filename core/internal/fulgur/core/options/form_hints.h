#pragma once

#include <string>
#include <string_view>

#include "fulgur/core/export.h"
#include "fulgur/core/options/config_node.h"

/// What to write in place of a value of a config that has a wrong form; for messages.
namespace fulgur::detail {

/// For `max_epochs:3`, which YAML takes for a text since no space follows the colon: what to write. Empty for any other
/// text, such as an address or a path.
FULGUR_API std::string missing_space_hint(std::string_view text);

/// Whether a key looks like the name of a class, such as `ModelCheckpoint`.
FULGUR_API bool looks_like_class(std::string_view key);

/// A component with these options: `{class_path: NAME, init_args: {monitor: val_loss}}`. `options` is what stands below
/// the name where it is written as a key; what does not fit a line is written as `…`.
FULGUR_API std::string component_form(std::string_view name, const ConfigNode& options);

/// A map where a list of components is expected, as that list; empty if the map has no class.
FULGUR_API std::string component_list_form(const ConfigNode& map);

}  // namespace fulgur::detail
