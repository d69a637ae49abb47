#include "decoding/decode.h"

#include <ATen/ops/empty.h>

#include <optional>

#include "decoding/file_bytes.h"
#include "decoding/image_reader.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace detail {
namespace {

/// Memory of a new tensor, which `image` then is.
auto memory_of(Tensor& image, int64_t channels) {
  return [&image, channels](ImageSize size) {
    image = at::empty({channels, size.height, size.width}, at::kByte);
    return image.mutable_data_ptr<uint8_t>();
  };
}

}  // namespace

void check_decode_options(const DecodeOptions& options) {
  if (options.channels != 1 && options.channels != 3)
    throw ConfigError(cat("[images.decode_image] channels must be 1 or 3; got ", options.channels, "."));
  if (options.stored_values && options.channels != 1)
    throw ConfigError(
        cat("[images.decode_image] stored values are of one channel; got channels ", options.channels, "."));
  // The readers count pixels with 32 bits per side.
  if (options.max_pixels < 1 || options.max_pixels > int64_t{1} << 40)
    throw ConfigError(cat("[images.decode_image] max_pixels must be in [1, 2^40]; got ", options.max_pixels, "."));
}

void decode_into(std::span<const uint8_t> bytes, const DecodeOptions& options, const ImageMemory& memory) {
  ReaderOptions how{.channels = options.channels,
                    .exif_orientation = options.exif_orientation,
                    .stored_values = options.stored_values,
                    .max_pixels = options.max_pixels,
                    .enough = {}};
  if (options.enough)
    how.enough = [&options](PixelSize size) {
      const auto least = options.enough({size.height, size.width});
      return least ? std::optional(PixelSize{least->height, least->width}) : std::nullopt;
    };
  ImageReader& reader = reader_of(bytes);
  if (options.stored_values && &reader != &png_reader()) throw BadImage("a mask must be PNG, which keeps all values");
  const PixelSize size = reader.open(bytes, how);
  reader.read(memory({size.height, size.width}));
}

void decode_file_into(const std::filesystem::path& path, const DecodeOptions& options, const ImageMemory& memory) {
  // 8 bytes a pixel are 16 bits of four channels without compression; profiles and thumbnails come in addition.
  constexpr uint64_t kOtherBytes = uint64_t{64} << 20;
  decode_into(image_file_bytes(path, static_cast<uint64_t>(options.max_pixels) * 8 + kOtherBytes), options, memory);
}

Tensor decode_file(const std::filesystem::path& path, const DecodeOptions& options) {
  Tensor image;
  decode_file_into(path, options, memory_of(image, options.channels));
  return image;
}

}  // namespace detail

Tensor decode_image(std::span<const uint8_t> bytes, const DecodeOptions& options) {
  detail::check_decode_options(options);
  Tensor image;
  try {
    detail::decode_into(bytes, options, detail::memory_of(image, options.channels));
  } catch (const detail::BadImage& error) {
    throw DataError(cat("[images.decode_image] the bytes must be an image that can be decoded; ", error.what(), "."));
  }
  return image;
}

Tensor decode_image(std::string_view bytes, const DecodeOptions& options) {
  constexpr size_t kLongestPath = 4096;
  try {
    return decode_image(std::span(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()), options);
  } catch (const DataError& error) {
    std::error_code none;
    if (bytes.size() >= kLongestPath || bytes.find('\0') != std::string_view::npos ||
        !std::filesystem::exists(std::filesystem::path(bytes), none))
      throw;
    throw DataError(cat(error.what(), " They are the name of a file: for its image, write ",
                        "decode_image(std::filesystem::path(text))."));
  }
}

Tensor decode_image(const std::filesystem::path& path, const DecodeOptions& options) {
  detail::check_decode_options(options);
  try {
    return detail::decode_file(path, options);
  } catch (const detail::BadImage& error) {
    throw DataError(cat("[images.decode_image] the file must be an image that can be decoded; ", error.what(),
                        "; file ", escape_controls(path.string()), ". Replace or remove it."));
  }
}

}  // namespace fulgur
