#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "fulgur/core/export.h"

namespace fulgur {

/// The whole of a regular file; nothing if there is none at `path`. Throws an Error that names it for a folder, fifo or
/// device, which it never waits for, and for a file that cannot be read.
FULGUR_API std::optional<std::string> read_regular_file(const std::filesystem::path& path);

/// Throws an Error that names `path` if something other than a regular file or a link is there, so that opening it for
/// writing could wait forever or write elsewhere.
FULGUR_API void check_replaceable(const std::filesystem::path& path);

}  // namespace fulgur
