#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "decoding/bad_image.h"
#include "fulgur/images/decode_image.h"

namespace fulgur::detail {

/// Decodes images of one format, one after the other. It keeps its memory for the next image, so each thread has its
/// own.
class ImageReader {
 public:
  virtual ~ImageReader() = default;
  /// Reads the header; `bytes` must stay valid until `read` has returned. Returns the size of the image that `read`
  /// writes. Throws BadImage.
  virtual ImageSize open(std::span<const uint8_t> bytes, const DecodeOptions& options) = 0;
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
void check_pixels(ImageSize size, int64_t max_pixels);

/// Memory above this size is given back after the image, so that one large image does not occupy it in each thread.
inline constexpr size_t kKeptBufferBytes = size_t{16} << 20;

}  // namespace fulgur::detail
