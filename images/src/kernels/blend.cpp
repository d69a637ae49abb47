#include <algorithm>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "kernels/pixels.h"

namespace fulgur::images {
namespace {

// Grey values with torchvision's weights, cut to whole levels.
FULGUR_VECTORIZED void gray_levels(const uint8_t* red, const uint8_t* green, const uint8_t* blue, uint8_t* out,
                                   int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float sum = static_cast<float>(red[i]) * 0.2989F + static_cast<float>(green[i]) * 0.587F;
    out[i] = static_cast<uint8_t>(sum + static_cast<float>(blue[i]) * 0.114F);
  }
}

FULGUR_VECTORIZED void blend_pixels(const uint8_t* image, const uint8_t* other, float factor, float rest, uint8_t* out,
                                    int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    out[i] =
        static_cast<uint8_t>(clamp_pixel(static_cast<float>(image[i]) * factor + static_cast<float>(other[i]) * rest));
}

FULGUR_VECTORIZED void scale_pixels(const uint8_t* image, float factor, float offset, uint8_t* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    out[i] = static_cast<uint8_t>(clamp_pixel(static_cast<float>(image[i]) * factor + offset));
}

Tensor scaled(const Tensor& image, double factor, float offset) {
  const Tensor from = planar(image);
  Tensor out = new_image(from.size(0), size_of(from));
  scale_pixels(from.const_data_ptr<uint8_t>(), static_cast<float>(factor), offset, out.data_ptr<uint8_t>(),
               from.numel());
  return out;
}

FULGUR_VECTORIZED int64_t sum_of_levels(const uint8_t* levels, int64_t count) {
  int64_t sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += levels[i];
  return sum;
}

// The grey levels of an image in planes; of one channel itself.
const uint8_t* levels_of(const Tensor& from, std::vector<uint8_t>& scratch) {
  const uint8_t* const data = from.const_data_ptr<uint8_t>();
  if (from.size(0) == 1) return data;
  const int64_t count = from.size(1) * from.size(2);
  scratch.resize(static_cast<size_t>(count));
  gray_levels(data, data + count, data + 2 * count, scratch.data(), count);
  return scratch.data();
}

std::vector<uint8_t>& gray_scratch() {
  static thread_local std::vector<uint8_t> scratch;
  return scratch;
}

}  // namespace

Tensor adjust_brightness(const Tensor& image, double factor) {
  check_uint8(image, "images.adjust_brightness");
  return scaled(image, factor, 0);
}

Tensor adjust_contrast(const Tensor& image, double factor) {
  check_colors(image, "images.adjust_contrast");
  const Tensor from = planar(image);
  const int64_t count = from.size(1) * from.size(2);
  const int64_t sum = sum_of_levels(levels_of(from, gray_scratch()), count);
  const auto mean = static_cast<float>(static_cast<double>(sum) / static_cast<double>(count));
  return scaled(from, factor, mean * static_cast<float>(1 - factor));
}

Tensor adjust_saturation(const Tensor& image, double factor) {
  check_colors(image, "images.adjust_saturation");
  if (image.size(0) == 1) return image;
  const Tensor from = planar(image);
  const int64_t count = from.size(1) * from.size(2);
  const uint8_t* const gray = levels_of(from, gray_scratch());
  Tensor out = new_image(3, size_of(from));
  for (int64_t c = 0; c < 3; ++c)
    blend_pixels(from.const_data_ptr<uint8_t>() + c * count, gray, static_cast<float>(factor),
                 static_cast<float>(1 - factor), out.data_ptr<uint8_t>() + c * count, count);
  return out;
}

Tensor to_grayscale(const Tensor& image, int64_t channels) {
  check_colors(image, "images.to_grayscale");
  if (channels != 1 && channels != 3)
    throw ConfigError(cat("[images.to_grayscale] the result has 1 or 3 channels; got ", channels, "."));
  const Tensor from = planar(image);
  const int64_t count = from.size(1) * from.size(2);
  const uint8_t* const gray = levels_of(from, gray_scratch());
  Tensor out = new_image(channels, size_of(from));
  for (int64_t c = 0; c < channels; ++c) std::copy_n(gray, count, out.data_ptr<uint8_t>() + c * count);
  return out;
}

}  // namespace fulgur::images
