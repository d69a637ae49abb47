#include <cmath>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "kernels/pixels.h"

namespace fulgur::images {
namespace {

// A colour of `most` in all channels but for what the hue and the saturation take away (Smith 1978); `place` is 6 · hue
// + 5, 3 or 1 for red, green or blue.
inline float channel_value(float place, float most, float range) {
  place -= place >= 6 ? 6.0F : 0.0F;
  const float other = 4 - place;
  float taken = place < other ? place : other;
  taken = taken < 1 ? taken : 1.0F;
  taken = taken > 0 ? taken : 0.0F;
  return most - range * taken;
}

// Conditions choose among values that exist, so that g++ makes no branches and vectorizes the loop.
FULGUR_VECTORIZED void shift_hue(const uint8_t* __restrict red, const uint8_t* __restrict green,
                                 const uint8_t* __restrict blue, float shift, uint8_t* __restrict out_red,
                                 uint8_t* __restrict out_green, uint8_t* __restrict out_blue, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float r = static_cast<float>(red[i]), g = static_cast<float>(green[i]), b = static_cast<float>(blue[i]);
    const float more = r > g ? r : g, less = r < g ? r : g;
    const float most = more > b ? more : b, least = less < b ? less : b;
    const float range = most - least, part = 1 / (range > 0 ? range : 1.0F);
    const float from_green = 2 + (b - r) * part, from_blue = 4 + (r - g) * part;
    const float from_red = (g - b) * part, from_others = most == g ? from_green : from_blue;
    float hue = (most == r ? from_red : from_others) + 6 * shift;  // in [-4, 8]
    hue += hue < 0 ? 6.0F : 0.0F;
    hue -= hue >= 6 ? 6.0F : 0.0F;
    // torchvision multiplies values in [0, 1] by 255.999 and cuts.
    constexpr float kScale = 255.999F / 255;
    out_red[i] = static_cast<uint8_t>(channel_value(hue + 5, most, range) * kScale);
    out_green[i] = static_cast<uint8_t>(channel_value(hue + 3, most, range) * kScale);
    out_blue[i] = static_cast<uint8_t>(channel_value(hue + 1, most, range) * kScale);
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
