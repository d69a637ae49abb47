#pragma once

#include <cstdint>

namespace fulgur::detail {

/// Height and width in pixels.
struct PixelSize {
  int64_t height = 0, width = 0;
  friend bool operator==(const PixelSize&, const PixelSize&) = default;
};

/// Where the pixels of an image that is stored in one orientation lie in the planes of the upright one.
struct PixelPlaces {
  int64_t origin = 0;  ///< of the first stored pixel, in a plane
  int64_t x_step = 1;  ///< from a stored pixel to the next one of its row
  int64_t y_step = 0;  ///< from a stored row to the next
  int64_t plane = 0;   ///< pixels in a plane
};

/// The size of the upright image: width and height change places for orientations 5 to 8.
PixelSize upright_size(PixelSize stored, int orientation);

/// `orientation` as in EXIF, 1 to 8.
PixelPlaces places_of(PixelSize stored, int orientation);

/// The samples of one pixel, as decoders return them.
enum class PixelKind {
  grey,
  rgb,
  inverted_cmyk,  ///< as JPEG files have it: 255 means no ink
};

/// Writes the stored row `y` of `width` pixels to the planes (channels, H, W) at `out`. `channels` is 1 or 3.
void put_row(const uint8_t* row, PixelKind kind, int64_t width, int64_t y, const PixelPlaces& places, int64_t channels,
             uint8_t* out) noexcept;

}  // namespace fulgur::detail
