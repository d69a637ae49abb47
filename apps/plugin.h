#pragma once

#include <filesystem>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/trainer/plugins.h"

namespace fulgur::cli {

/// Loads a plug-in of the command line. Throws a ConfigError if it cannot be loaded.
inline void load_plugin(const std::filesystem::path& path) {
  if (const auto why = detail::load_plugin(path)) throw ConfigError(cat("[cli] --plugin '", path, "' ", *why));
}

}  // namespace fulgur::cli
