#include "fulgur/images/erasing_transforms.h"

#include <algorithm>
#include <cmath>

#include "batch_ops.h"
#include "drawing.h"
#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/options/checked_options.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "kernels/pixels.h"

namespace fulgur::images {
namespace {

void write_box(const Box& box, float* row) {
  row[0] = static_cast<float>(box.top);
  row[1] = static_cast<float>(box.left);
  row[2] = static_cast<float>(box.height);
  row[3] = static_cast<float>(box.width);
}

Tensor hide(const Tensor& image, const float* row, const std::vector<double>& value) {
  const Box box{static_cast<int64_t>(row[0]), static_cast<int64_t>(row[1]), static_cast<int64_t>(row[2]),
                static_cast<int64_t>(row[3])};
  return box.height == 0 || box.width == 0 ? image : erase(image, box, value);
}

}  // namespace

void Cutout::Options::fields(Fields& f) {
  f(length, "length", "Pixels of the sides of the square.").required().range(1, 65536);
  f(p, "p", "Probability that a square is hidden.").range(0, 1);
  f(value, "value", "Value of its pixels, or one per channel.");
}

Cutout::Cutout(const Options& options) : options_(detail::checked_options(options, "images.Cutout")) {
  check_values(options_.value, "images.Cutout", "value");
}

void Cutout::draw(ImageSize size, SplitMix64& random, float* row) const {
  const bool hides = happens(random, options_.p);
  const int64_t top = whole_up_to(random, size.height - 1) - options_.length / 2;
  const int64_t left = whole_up_to(random, size.width - 1) - options_.length / 2;
  Box box{std::max<int64_t>(top, 0), std::max<int64_t>(left, 0), 0, 0};
  if (hides) {
    box.height = std::min(top + options_.length, size.height) - box.top;
    box.width = std::min(left + options_.length, size.width) - box.left;
  }
  write_box(hides ? box : Box{}, row);
}

Tensor Cutout::apply(const Tensor& image, SplitMix64& random) const {
  check_image(image, "images.Cutout");
  float row[4];
  draw(size_of(image), random, row);
  return hide(image, row, options_.value.values);
}

Tensor Cutout::apply_batch(const Tensor& images, const Tensor& parameters) const {
  return batch_erase(images, parameters, options_.value.values);
}

void Cutout::check_batch(ImageSize, int64_t channels) const {
  per_channel(options_.value.values, channels, "images.Cutout", "value");
}

void RandomErasing::Options::fields(Fields& f) {
  f(p, "p", "Probability that a rectangle is hidden.").range(0, 1);
  f(scale, "scale", "Smallest and largest area of the rectangle, relative to the image.").items(2).range(0, 1);
  f(ratio, "ratio", "Smallest and largest height of the rectangle, relative to its width.").items(2);
  f(value, "value", "Value of its pixels, or one per channel.");
}

RandomErasing::RandomErasing(const Options& options)
    : options_(detail::checked_options(options, "images.RandomErasing")) {
  check_range(options_.scale, 0, /*open=*/false, "images.RandomErasing", "scale");
  check_range(options_.ratio, 0, /*open=*/true, "images.RandomErasing", "ratio");
  check_values(options_.value, "images.RandomErasing", "value");
}

void RandomErasing::draw(ImageSize size, SplitMix64& random, float* row) const {
  write_box({}, row);
  if (!happens(random, options_.p)) return;
  const auto height = static_cast<double>(size.height), width = static_cast<double>(size.width);
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double area = height * width * uniform_in(random, options_.scale[0], options_.scale[1]);
    const double ratio = std::exp(uniform_in(random, std::log(options_.ratio[0]), std::log(options_.ratio[1])));
    const double h = std::nearbyint(std::sqrt(area * ratio)), w = std::nearbyint(std::sqrt(area / ratio));
    if (h >= height || w >= width) continue;
    Box box{0, 0, static_cast<int64_t>(h), static_cast<int64_t>(w)};
    box.top = whole_up_to(random, size.height - box.height);
    box.left = whole_up_to(random, size.width - box.width);
    write_box(box, row);
    return;
  }
}

Tensor RandomErasing::apply(const Tensor& image, SplitMix64& random) const {
  check_image(image, "images.RandomErasing");
  float row[4];
  draw(size_of(image), random, row);
  return hide(image, row, options_.value.values);
}

Tensor RandomErasing::apply_batch(const Tensor& images, const Tensor& parameters) const {
  return batch_erase(images, parameters, options_.value.values);
}

void RandomErasing::check_batch(ImageSize, int64_t channels) const {
  per_channel(options_.value.values, channels, "images.RandomErasing", "value");
}

[[maybe_unused]] static const bool registered_cutout =
    Registry<ImageTransform>::add<Cutout>("Cutout", "Hides a square at a random place.");
[[maybe_unused]] static const bool registered_random_erasing = Registry<ImageTransform>::add<RandomErasing>(
    "RandomErasing", "Hides a rectangle of random place, area and aspect ratio.");

}  // namespace fulgur::images
