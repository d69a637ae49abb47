#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "decoding/bad_image.h"
#include "decoding/pixel_rows.h"

namespace fulgur::detail {

/// As in DecodeOptions; the readers are free of LibTorch, so that they can be fuzzed.
struct ReaderOptions {
  int64_t channels = 3;
  bool exif_orientation = true;
  bool stored_values = false;
  int64_t max_pixels = 100'000'000;
  std::function<std::optional<PixelSize>(PixelSize)> enough = {};
};

/// Decodes images of one format, one after the other. It keeps its memory for the next image, so each thread has its
/// own.
class ImageReader {
 public:
  virtual ~ImageReader() = default;
  /// Reads the header; `bytes` must stay valid until `read` has returned. Returns the size of the image that `read`
  /// writes. Throws BadImage.
  virtual PixelSize open(std::span<const uint8_t> bytes, const ReaderOptions& options) = 0;
  /// Writes the image (channels, H, W) to `out`, once per `open`. Throws BadImage; what is at `out` is then undefined.
  virtual void read(uint8_t* out) = 0;
};

/// Readers of this thread.
ImageReader& jpeg_reader();
ImageReader& png_reader();
ImageReader& webp_reader();

/// The reader of the format that the first bytes show. Throws BadImage for another format.
ImageReader& reader_of(std::span<const uint8_t> bytes);

/// Throws BadImage if there are more than `max_pixels`.
void check_pixels(PixelSize size, int64_t max_pixels);

/// Memory above this size is given back after the image, so that one large image does not occupy it in each thread.
inline constexpr size_t kKeptBufferBytes = size_t{16} << 20;

}  // namespace fulgur::detail
