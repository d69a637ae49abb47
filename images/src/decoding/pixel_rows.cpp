#include "decoding/pixel_rows.h"

#include <array>
#include <cstring>
#include <type_traits>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fulgur::detail {
namespace {

struct Rgb {
  uint8_t red, green, blue;
};

// Types instead of functions, so that calls in the loops below are inlined.
struct RgbPixels {
  Rgb operator()(const uint8_t* row, int64_t x) const { return {row[3 * x], row[3 * x + 1], row[3 * x + 2]}; }
};

/// As PIL converts CMYK to RGB.
struct InkPixels {
  Rgb operator()(const uint8_t* row, int64_t x) const {
    const uint32_t light = row[4 * x + 3];
    const auto channel = [&](int64_t i) {
      const uint32_t product = (255u - row[4 * x + i]) * light + 128;
      return static_cast<uint8_t>(light - (((product >> 8) + product) >> 8));
    };
    return {channel(0), channel(1), channel(2)};
  }
};

/// As PIL converts RGB to L.
uint8_t grey_of(Rgb pixel) {
  return static_cast<uint8_t>((19595u * pixel.red + 38470u * pixel.green + 7471u * pixel.blue + 0x8000u) >> 16);
}

#if defined(__x86_64__)
/// Which of 16 bytes, part `part` of 16 RGB pixels, go where in 16 values of `channel`; 0x80: none.
constexpr std::array<uint8_t, 16> taken_bytes(int part, int channel) {
  std::array<uint8_t, 16> places{};
  for (int i = 0; i < 16; ++i) {
    const int at = 3 * i + channel;
    places[static_cast<size_t>(i)] = static_cast<uint8_t>(at / 16 == part ? at % 16 : 0x80);
  }
  return places;
}

/// Splits whole groups of 16 pixels, and returns how many pixels these are. Without the instruction for it, which
/// compilers may not use by default, this takes a quarter of the time of decoding.
[[gnu::target("ssse3")]] int64_t split_sixteens(const uint8_t* row, int64_t width, uint8_t* to, int64_t plane) {
  static constexpr std::array<std::array<std::array<uint8_t, 16>, 3>, 3> kTaken{
      {{taken_bytes(0, 0), taken_bytes(1, 0), taken_bytes(2, 0)},
       {taken_bytes(0, 1), taken_bytes(1, 1), taken_bytes(2, 1)},
       {taken_bytes(0, 2), taken_bytes(1, 2), taken_bytes(2, 2)}}};
  const auto load = [](const uint8_t* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); };
  int64_t x = 0;
  for (; x + 16 <= width; x += 16) {
    const __m128i first = load(row + 3 * x), second = load(row + 3 * x + 16), third = load(row + 3 * x + 32);
    for (size_t channel = 0; channel < 3; ++channel) {
      const auto& taken = kTaken[channel];
      const __m128i values = _mm_or_si128(
          _mm_or_si128(_mm_shuffle_epi8(first, load(taken[0].data())), _mm_shuffle_epi8(second, load(taken[1].data()))),
          _mm_shuffle_epi8(third, load(taken[2].data())));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + static_cast<int64_t>(channel) * plane + x), values);
    }
  }
  return x;
}
#endif

/// Writes pixels from the beginning of an RGB row to planes in which they are neighbours; returns how many.
int64_t split_rgb_fast([[maybe_unused]] const uint8_t* row, [[maybe_unused]] int64_t width,
                       [[maybe_unused]] uint8_t* to, [[maybe_unused]] int64_t plane) {
#if defined(__x86_64__)
  static const bool can = __builtin_cpu_supports("ssse3") != 0;
  if (can) return split_sixteens(row, width, to, plane);
#endif
  return 0;
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
  int64_t x = 0;
  if constexpr (std::is_same_v<PixelAt, RgbPixels>)
    if (step == 1) x = split_rgb_fast(row, width, to, plane);
  for (; x < width; ++x) {
    const Rgb pixel = pixel_at(row, x);
    red[x * step] = pixel.red;
    green[x * step] = pixel.green;
    blue[x * step] = pixel.blue;
  }
}

}  // namespace

PixelSize upright_size(PixelSize stored, int orientation) {
  return orientation >= 5 ? PixelSize{stored.width, stored.height} : stored;
}

PixelPlaces places_of(PixelSize stored, int orientation) {
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
  if (kind == PixelKind::rgb) return put_colours(row, width, places.x_step, places.plane, channels, to, RgbPixels());
  if (kind == PixelKind::inverted_cmyk)
    return put_colours(row, width, places.x_step, places.plane, channels, to, InkPixels());
  for (int64_t channel = 0; channel < channels; ++channel, to += places.plane) {
    if (places.x_step == 1)
      std::memcpy(to, row, static_cast<size_t>(width));
    else
      for (int64_t x = 0; x < width; ++x) to[x * places.x_step] = row[x];
  }
}

}  // namespace fulgur::detail
