#include <cstdint>
#include <optional>
#include <vector>

#include "decoding/image_reader.h"
#include "targets.h"

namespace fulgur::fuzz {

// The first byte has the options; the rest is the file.
void images(std::string_view input) {
  if (input.empty()) return;
  const auto flags = static_cast<unsigned char>(input[0]);
  input.remove_prefix(1);
  constexpr int64_t kMostPixels = 1 << 16;
  detail::ReaderOptions options{.channels = (flags & 1) != 0 ? 1 : 3,
                                .exif_orientation = (flags & 2) == 0,
                                .max_pixels = kMostPixels,
                                .enough = {}};
  if ((flags & 4) != 0)
    options.enough = [flags](detail::PixelSize full) {
      expect(full.height > 0 && full.width > 0, "an image has pixels");
      return std::optional(detail::PixelSize{1 + (flags >> 4), 1 + (flags >> 3)});
    };
  const std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(input.data()), input.size());
  try {
    detail::ImageReader& reader = detail::reader_of(bytes);
    const detail::PixelSize size = reader.open(bytes, options);
    expect(size.height > 0 && size.width > 0 && size.height * size.width <= kMostPixels, "an image has few pixels");
    // Exactly as large as the image, so that a write behind it is found.
    std::vector<uint8_t> pixels(static_cast<size_t>(options.channels * size.height * size.width));
    reader.read(pixels.data());
  } catch (const detail::BadImage&) {
  }
}

}  // namespace fulgur::fuzz
