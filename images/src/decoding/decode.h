#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>

#include "decoding/bad_image.h"
#include "fulgur/images/decode_image.h"

namespace fulgur::detail {

/// Returns memory for (channels, H, W) bytes.
using ImageMemory = std::function<uint8_t*(ImageSize)>;

/// Throws a ConfigError for options out of range.
void check_decode_options(const DecodeOptions& options);

/// Decodes an image into the memory that `memory` returns for its size. Throws BadImage.
void decode_into(std::span<const uint8_t> bytes, const DecodeOptions& options, const ImageMemory& memory);

/// The same for a file. Throws BadImage, and a DataError if the system fails.
void decode_file_into(const std::filesystem::path& path, const DecodeOptions& options, const ImageMemory& memory);

/// The image in a tensor.
Tensor decode_file(const std::filesystem::path& path, const DecodeOptions& options);

}  // namespace fulgur::detail
