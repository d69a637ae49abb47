#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "decoding/bad_image.h"

namespace fulgur::detail {

/// The contents of an image file, in memory of this thread that the next call overwrites. Throws BadImage for a file
/// that is absent, may not be read, is no regular file (without blocking on it) or has more than `limit` bytes, and a
/// DataError if the system fails, which has nothing to do with the file.
std::span<const uint8_t> image_file_bytes(const std::filesystem::path& path, uint64_t limit);

}  // namespace fulgur::detail
