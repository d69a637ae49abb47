#pragma once

#include <filesystem>

namespace fulgur {

/// Whether `path` is `folder`, or in it, by their names alone: both are absolute and normal, or both canonical.
inline bool is_below(const std::filesystem::path& path, const std::filesystem::path& folder) {
  const std::filesystem::path relative = path.lexically_relative(folder);
  return !relative.empty() && *relative.begin() != "..";
}

}  // namespace fulgur
