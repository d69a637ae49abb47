#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "fulgur/core/export.h"

namespace fulgur::detail {

/// Loads a library that registers components, until the process ends; it runs code of that library. Returns nullopt, or
/// why it cannot be loaded, as a sentence without its subject. Loading a library again has no effect.
FULGUR_API std::optional<std::string> load_plugin(const std::filesystem::path& path);

}  // namespace fulgur::detail
