#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "fulgur/core/export.h"

namespace fulgur {

/// The contents of a regular file; nullopt if `path` does not exist. Throws an Error that names it for a folder, fifo
/// or device (without blocking on it), and for a file that cannot be read.
FULGUR_API std::optional<std::string> read_regular_file(const std::filesystem::path& path);

/// Throws an Error that names `path` if it is a folder, fifo, socket or device: opening it for writing could block
/// forever. Regular files and links are accepted.
FULGUR_API void check_replaceable(const std::filesystem::path& path);

}  // namespace fulgur
