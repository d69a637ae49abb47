#include "fulgur/images/color_transforms.h"

#include <algorithm>
#include <array>
#include <utility>

#include "batch_ops.h"
#include "drawing.h"
#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/options/checked_options.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "kernels/pixels.h"

namespace fulgur::images {

void ColorJitter::Options::fields(Fields& f) {
  f(brightness, "brightness", "Largest change of the factor of all values.").range(0, 100);
  f(contrast, "contrast", "Largest change of the factor of the distances from the mean grey value.").range(0, 100);
  f(saturation, "saturation", "Largest change of the factor of the distances from the pixel's grey value.")
      .range(0, 100);
  f(hue, "hue", "Largest shift of the hue, of a whole circle; not on the device.").range(0, 0.5);
}

ColorJitter::ColorJitter(const Options& options) : options_(detail::checked_options(options, "images.ColorJitter")) {}

void ColorJitter::draw(ImageSize, SplitMix64& random, float* row) const {
  std::array<float, 4> order = {0, 1, 2, 3};
  for (size_t i = 3; i > 0; --i) std::swap(order[i], order[static_cast<size_t>(random.below(i + 1))]);
  std::copy(order.begin(), order.end(), row);
  const auto factor = [&](double change) {
    return static_cast<float>(uniform_in(random, std::max(0.0, 1 - change), 1 + change));
  };
  row[4] = factor(options_.brightness);
  row[5] = factor(options_.contrast);
  row[6] = factor(options_.saturation);
  row[7] = static_cast<float>(uniform_in(random, -options_.hue, options_.hue));
}

Tensor ColorJitter::apply(const Tensor& image, SplitMix64& random) const {
  check_colors(image, "images.ColorJitter");
  std::array<float, 8> row;
  draw(size_of(image), random, row.data());
  Tensor result = image;
  for (size_t i = 0; i < 4; ++i) {
    const int operation = static_cast<int>(row[i]);
    const auto number = static_cast<double>(row[4 + static_cast<size_t>(operation)]);
    if (operation == 0 && options_.brightness > 0) result = adjust_brightness(result, number);
    if (operation == 1 && options_.contrast > 0) result = adjust_contrast(result, number);
    if (operation == 2 && options_.saturation > 0) result = adjust_saturation(result, number);
    if (operation == 3 && options_.hue > 0) result = adjust_hue(result, number);
  }
  return result;
}

Tensor ColorJitter::apply_batch(const Tensor& images, const Tensor& parameters) const {
  return batch_color_jitter(images, parameters, options_.contrast > 0, options_.saturation > 0);
}

void ColorJitter::check_batch(ImageSize, int64_t channels) const {
  if (options_.hue > 0)
    throw ConfigError(cat("[images.ColorJitter] on the device, hue must be 0; it is ", options_.hue,
                          ". Move the transform to the workers, or remove hue."));
  if (channels != 1 && channels != 3)
    throw ConfigError(cat("[images.ColorJitter] images must have 1 or 3 channels; they have ", channels, "."));
}

void Grayscale::Options::fields(Fields& f) {
  f(num_output_channels, "num_output_channels", "1, or 3 equal channels.").range(1, 3);
}

Grayscale::Grayscale(const Options& options) : options_(detail::checked_options(options, "images.Grayscale")) {
  if (options_.num_output_channels == 2)
    throw ConfigError("[images.Grayscale] num_output_channels must be 1 or 3; got 2.");
}

Tensor Grayscale::apply(const Tensor& image, SplitMix64&) const {
  return to_grayscale(image, options_.num_output_channels);
}

void RandomGrayscale::Options::fields(Fields& f) {
  f(p, "p", "Probability that an image loses its colours.").range(0, 1);
}

RandomGrayscale::RandomGrayscale(const Options& options)
    : options_(detail::checked_options(options, "images.RandomGrayscale")) {}

Tensor RandomGrayscale::apply(const Tensor& image, SplitMix64& random) const {
  check_colors(image, "images.RandomGrayscale");
  return happens(random, options_.p) ? to_grayscale(image, image.size(0)) : image;
}

void GaussianBlur::Options::fields(Fields& f) {
  f(kernel_size, "kernel_size", "Pixels in a row that are averaged; odd.").required().range(1, 1023);
  f(sigma, "sigma", "Smallest and largest standard deviation in pixels.").items(2);
  f(p, "p", "Probability that an image is blurred.").range(0, 1);
}

GaussianBlur::GaussianBlur(const Options& options) : options_(detail::checked_options(options, "images.GaussianBlur")) {
  if (options_.kernel_size % 2 == 0)
    throw ConfigError(cat("[images.GaussianBlur] kernel_size must be odd; got ", options_.kernel_size, "."));
  check_range(options_.sigma, 0, /*open=*/true, "images.GaussianBlur", "sigma");
}

Tensor GaussianBlur::apply(const Tensor& image, SplitMix64& random) const {
  check_uint8(image, "images.GaussianBlur");
  if (!happens(random, options_.p)) return image;
  return gaussian_blur(image, options_.kernel_size, uniform_in(random, options_.sigma[0], options_.sigma[1]));
}

[[maybe_unused]] static const bool registered_color_jitter = Registry<ImageTransform>::add<ColorJitter>(
    "ColorJitter", "Changes brightness, contrast, saturation and hue at random.");
[[maybe_unused]] static const bool registered_grayscale =
    Registry<ImageTransform>::add<Grayscale>("Grayscale", "Converts colours to grey values.");
[[maybe_unused]] static const bool registered_random_grayscale = Registry<ImageTransform>::add<RandomGrayscale>(
    "RandomGrayscale", "Converts colours to grey values with a probability.");
[[maybe_unused]] static const bool registered_gaussian_blur =
    Registry<ImageTransform>::add<GaussianBlur>("GaussianBlur", "Blurs with a random standard deviation.");

}  // namespace fulgur::images
