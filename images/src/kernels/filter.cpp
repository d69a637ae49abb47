#include <algorithm>
#include <cmath>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "kernels/pixels.h"
#include "kernels/taps.h"

namespace fulgur::images {
namespace {

// Values of a row between its first and its last: x + (1 - factor) · (blurred - x), as torchvision computes it.
FULGUR_VECTORIZED void sharpen_row(const uint8_t* above, const uint8_t* row, const uint8_t* below, float rest,
                                   uint8_t* out, int64_t width) {
  for (int64_t x = 1; x < width - 1; ++x) {
    const int32_t around =
        above[x - 1] + above[x] + above[x + 1] + row[x - 1] + row[x + 1] + below[x - 1] + below[x] + below[x + 1];
    const int32_t blurred = (2 * (around + 5 * row[x]) + 13) / 26;
    const float value = static_cast<float>(row[x]) + static_cast<float>(blurred - row[x]) * rest;
    out[x] = static_cast<uint8_t>(clamp_pixel(value));
  }
}

}  // namespace

Tensor gaussian_blur(const Tensor& image, int64_t kernel_size, double sigma) {
  check_uint8(image, "images.gaussian_blur");
  if (kernel_size < 1 || kernel_size % 2 == 0 || !(sigma > 0))
    throw ConfigError(cat("[images.gaussian_blur] kernel_size must be odd and positive, and sigma greater than 0; got ",
                          kernel_size, " and ", sigma, "."));
  const int64_t half = kernel_size / 2, height = image.size(1), width = image.size(2);
  if (half >= height || half >= width)
    throw DataError(
        cat("[images.gaussian_blur] half of kernel_size must be less than the image's height and width; got ",
            kernel_size, " for ", shape_text(image.sizes()), ". Use larger images or a smaller kernel."));
  std::vector<double> kernel;
  double sum = 0;
  for (int64_t i = -half; i <= half; ++i) {
    const double x = static_cast<double>(i) / sigma;
    kernel.push_back(std::exp(-0.5 * x * x));
    sum += kernel.back();
  }
  for (double& weight : kernel) weight /= sum;
  static thread_local Taps down, across;
  blur_taps(height, kernel, down);
  blur_taps(width, kernel, across);
  return weighted_sums(image, {0, 0, height, width}, down, across);
}

Tensor adjust_sharpness(const Tensor& image, double factor) {
  check_colors(image, "images.adjust_sharpness");
  const Tensor from = planar(image);
  const int64_t height = from.size(1), width = from.size(2);
  if (height <= 2 || width <= 2) return from;
  Tensor out = new_image(from.size(0), size_of(from));
  const uint8_t* row = from.const_data_ptr<uint8_t>();
  uint8_t* to = out.data_ptr<uint8_t>();
  const auto rest = static_cast<float>(1 - factor);
  for (int64_t c = 0; c < from.size(0); ++c)
    for (int64_t y = 0; y < height; ++y, row += width, to += width) {
      std::copy_n(row, width, to);
      if (y > 0 && y < height - 1) sharpen_row(row - width, row, row + width, rest, to, width);
    }
  return out;
}

}  // namespace fulgur::images
