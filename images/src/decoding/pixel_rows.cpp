#include "decoding/pixel_rows.h"

#include <cstring>

namespace fulgur::detail {
namespace {

struct Rgb {
  uint8_t red, green, blue;
};

Rgb rgb_at(const uint8_t* row, int64_t x) { return {row[3 * x], row[3 * x + 1], row[3 * x + 2]}; }

/// As PIL converts CMYK to RGB.
Rgb rgb_of_ink(const uint8_t* row, int64_t x) {
  const uint32_t light = row[4 * x + 3];
  const auto channel = [&](int64_t i) {
    const uint32_t product = (255u - row[4 * x + i]) * light + 128;
    return static_cast<uint8_t>(light - (((product >> 8) + product) >> 8));
  };
  return {channel(0), channel(1), channel(2)};
}

/// As PIL converts RGB to L.
uint8_t grey_of(Rgb pixel) {
  return static_cast<uint8_t>((19595u * pixel.red + 38470u * pixel.green + 7471u * pixel.blue + 0x8000u) >> 16);
}

template <class PixelAt>
void put_colours(const uint8_t* row, int64_t width, int64_t step, int64_t plane, int64_t channels, uint8_t* to,
                 const PixelAt& pixel_at) {
  if (channels == 1) {
    for (int64_t x = 0; x < width; ++x) to[x * step] = grey_of(pixel_at(row, x));
    return;
  }
  uint8_t* __restrict red = to;
  uint8_t* __restrict green = to + plane;
  uint8_t* __restrict blue = to + 2 * plane;
  // A step that the compiler knows gives vector code.
  if (step == 1) {
    for (int64_t x = 0; x < width; ++x) {
      const Rgb pixel = pixel_at(row, x);
      red[x] = pixel.red;
      green[x] = pixel.green;
      blue[x] = pixel.blue;
    }
    return;
  }
  for (int64_t x = 0; x < width; ++x) {
    const Rgb pixel = pixel_at(row, x);
    red[x * step] = pixel.red;
    green[x * step] = pixel.green;
    blue[x * step] = pixel.blue;
  }
}

}  // namespace

ImageSize upright_size(ImageSize stored, int orientation) {
  return orientation >= 5 ? ImageSize{stored.width, stored.height} : stored;
}

PixelPlaces places_of(ImageSize stored, int orientation) {
  const int64_t h = stored.height, w = stored.width, plane = h * w;
  switch (orientation) {
    case 2:  // mirrored
      return {w - 1, -1, w, plane};
    case 3:  // turned by 180 degrees
      return {plane - 1, -1, -w, plane};
    case 4:  // upside down and mirrored
      return {plane - w, 1, -w, plane};
    case 5:  // transposed; from here on a row of the upright image has h pixels
      return {0, h, 1, plane};
    case 6:  // to be turned by 90 degrees clockwise
      return {h - 1, h, -1, plane};
    case 7:  // transposed along the other diagonal
      return {plane - 1, -h, -1, plane};
    case 8:  // to be turned by 90 degrees anticlockwise
      return {plane - h, -h, 1, plane};
    default:
      return {0, 1, w, plane};
  }
}

void put_row(const uint8_t* row, PixelKind kind, int64_t width, int64_t y, const PixelPlaces& places, int64_t channels,
             uint8_t* out) noexcept {
  uint8_t* to = out + places.origin + y * places.y_step;
  if (kind == PixelKind::rgb) return put_colours(row, width, places.x_step, places.plane, channels, to, rgb_at);
  if (kind == PixelKind::inverted_cmyk)
    return put_colours(row, width, places.x_step, places.plane, channels, to, rgb_of_ink);
  for (int64_t channel = 0; channel < channels; ++channel, to += places.plane) {
    if (places.x_step == 1)
      std::memcpy(to, row, static_cast<size_t>(width));
    else
      for (int64_t x = 0; x < width; ++x) to[x * places.x_step] = row[x];
  }
}

}  // namespace fulgur::detail
