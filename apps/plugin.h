#pragma once

#include <filesystem>

namespace fulgur::cli {

/// Loads a library that registers components, until the process ends. Throws a ConfigError if it cannot be loaded.
void load_plugin(const std::filesystem::path& path);

}  // namespace fulgur::cli
