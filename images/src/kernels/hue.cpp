#include <algorithm>
#include <cmath>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "kernels/pixels.h"

namespace fulgur::images {
namespace {

// The level of a value in [0, 1], as torchvision converts it.
uint8_t level_of(float value) { return static_cast<uint8_t>(std::clamp(value, 0.0F, 1.0F) * 255.999F); }

void shift_hue(const uint8_t* red, const uint8_t* green, const uint8_t* blue, float shift, uint8_t* out_red,
               uint8_t* out_green, uint8_t* out_blue, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float r = static_cast<float>(red[i]) / 255, g = static_cast<float>(green[i]) / 255,
                b = static_cast<float>(blue[i]) / 255;
    const float most = std::max({r, g, b}), least = std::min({r, g, b}), range = most - least;
    if (range == 0) {
      out_red[i] = red[i], out_green[i] = green[i], out_blue[i] = blue[i];
      continue;
    }
    const float rc = (most - r) / range, gc = (most - g) / range, bc = (most - b) / range;
    float hue = most == r ? bc - gc : most == g ? 2 + rc - bc : 4 + gc - rc;
    hue = hue / 6 + shift;
    hue -= std::floor(hue);
    const float saturation = range / most, place = hue * 6, sector = std::floor(place), f = place - sector;
    const float p = most * (1 - saturation), q = most * (1 - saturation * f), t = most * (1 - saturation * (1 - f));
    float to_r = most, to_g = t, to_b = p;
    switch (static_cast<int>(sector) % 6) {
      case 1: to_r = q, to_g = most, to_b = p; break;
      case 2: to_r = p, to_g = most, to_b = t; break;
      case 3: to_r = p, to_g = q, to_b = most; break;
      case 4: to_r = t, to_g = p, to_b = most; break;
      case 5: to_r = most, to_g = p, to_b = q; break;
      default: break;
    }
    out_red[i] = level_of(to_r), out_green[i] = level_of(to_g), out_blue[i] = level_of(to_b);
  }
}

}  // namespace

Tensor adjust_hue(const Tensor& image, double shift) {
  check_colors(image, "images.adjust_hue");
  if (!(std::abs(shift) <= 0.5))
    throw ConfigError(cat("[images.adjust_hue] the shift must be from -0.5 to 0.5; got ", shift, "."));
  if (image.size(0) == 1) return image;
  const Tensor from = planar(image);
  const int64_t count = from.size(1) * from.size(2);
  Tensor out = new_image(3, size_of(from));
  const uint8_t* const data = from.const_data_ptr<uint8_t>();
  uint8_t* const to = out.data_ptr<uint8_t>();
  shift_hue(data, data + count, data + 2 * count, static_cast<float>(shift), to, to + count, to + 2 * count, count);
  return out;
}

}  // namespace fulgur::images
