#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "fulgur/core/export.h"
#include "fulgur/trainer/config.h"

namespace fulgur::detail {

/// Loads a library that registers components, until the process ends; it runs code of that library. Returns nullopt, or
/// why it cannot be loaded, as a sentence without its subject. Loading a library again has no effect.
FULGUR_API std::optional<std::string> load_plugin(const std::filesystem::path& path);

/// From now on, `load_plugin` refuses a plug-in that registers a verb for whose name `is_taken` returns true: the
/// program would never run it. Null: none is refused.
FULGUR_API void reserve_verbs(bool (*is_taken)(const std::string& name));

/// Loads the plug-ins that the sources name, as `load_config` does, for functions that need no more of the config or
/// then call `merge_config`. Throws a ConfigError if a source cannot be read, if `plugin` is wrong, and if a plug-in
/// cannot be loaded; other mistakes in the sources are not reported.
FULGUR_API void load_plugins_of(const ConfigSources& sources);

}  // namespace fulgur::detail
