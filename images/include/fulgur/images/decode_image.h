#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "fulgur/core/state/tensor.h"
#include "fulgur/images/image_transform.h"

namespace fulgur {

/// How files become pixels.
struct DecodeOptions {
  /// 3: RGB. 1: grey; of colours it is the luminance of ITU-R 601 as PIL computes it, and for JPEG the file's own.
  int64_t channels = 3;
  /// Turns and mirrors the image as the file's EXIF orientation says.
  bool exif_orientation = true;
  /// Only PNG, with `channels` 1: the values as the file stores them, for masks. Of a palette that is the place of a
  /// colour, and grey of 1, 2 or 4 bits is not scaled. A file with colours or alpha, or of 16 bits, is refused.
  bool stored_values = false;
  /// Larger images are refused when their header is read, before memory is allocated.
  int64_t max_pixels = 100'000'000;
  /// Gets the size that the full image has after `exif_orientation`, and returns the smallest size that is enough: a
  /// JPEG is then decoded at 1/8, 1/4 or 1/2, whichever is the smallest that is enough in both dimensions. Empty, or
  /// nullopt as the result: the full size. Other formats are always decoded at full size.
  std::function<std::optional<ImageSize>(ImageSize)> enough = {};
};

/// The image (channels, H, W) uint8, contiguous, of a JPEG, PNG or WebP file, which is recognised by its first bytes.
/// Thread-safe; each thread keeps its decoders and buffers for the next image.
///
/// The values of PNG and WebP are those of PIL's `convert("RGB")`: palettes are resolved, alpha is dropped without
/// blending, and of 16 bits the upper 8 count (also for 16-bit grey, which PIL clips instead). JPEG files of CMYK and
/// YCCK become RGB as in PIL. Throws a DataError for a file that is damaged, incomplete, of another format, animated
/// WebP, or has more than `max_pixels`, and a ConfigError for options out of range.
FULGUR_API Tensor decode_image(std::span<const uint8_t> bytes, const DecodeOptions& options = {});

/// The same for bytes in a text, such as a member of a TarSample. The path of a file is a std::filesystem::path or a
/// literal.
FULGUR_API Tensor decode_image(std::string_view bytes, const DecodeOptions& options = {});
inline Tensor decode_image(const std::string& bytes, const DecodeOptions& options = {}) {
  return decode_image(std::string_view(bytes), options);
}

/// The same for a file, whose path is in the messages. A file that cannot be read is a DataError, too.
FULGUR_API Tensor decode_image(const std::filesystem::path& path, const DecodeOptions& options = {});
inline Tensor decode_image(const char* path, const DecodeOptions& options = {}) {
  return decode_image(std::filesystem::path(path), options);
}

}  // namespace fulgur
