#include <algorithm>
#include <cmath>

#include "drawing.h"
#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/options/checked_options.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/images/geometry_transforms.h"
#include "kernels/pixels.h"

namespace fulgur::images {

void Resize::Options::fields(Fields& f) {
  f(size, "size", "Pixels of the shorter side, or [height, width].").required();
  f(interpolation, "interpolation", "How pixels are computed.");
  f(antialias, "antialias", "Use all pixels that a smaller pixel covers (bilinear and bicubic).");
}

Resize::Resize(const Options& options) : options_(detail::checked_options(options, "images.Resize")) {
  size_from(options_.size, "images.Resize");
}

ImageSize Resize::target(ImageSize size) const {
  const auto& wanted = options_.size.values;
  if (wanted.size() == 2) return {wanted[0], wanted[1]};
  const int64_t shorter = std::min(size.height, size.width), longer = std::max(size.height, size.width);
  const auto long_side = static_cast<int64_t>(static_cast<double>(wanted[0] * longer) / static_cast<double>(shorter));
  return size.height <= size.width ? ImageSize{wanted[0], long_side} : ImageSize{long_side, wanted[0]};
}

Tensor Resize::apply(const Tensor& image, SplitMix64&) const {
  check_uint8(image, "images.Resize");
  return resize(image, target(size_of(image)), options_.interpolation, options_.antialias);
}

Tensor Resize::apply_to_mask(const Tensor& mask, SplitMix64&) const {
  return resize(mask, target(size_of(mask)), Interpolation::nearest, /*antialias=*/false);
}

void RandomResizedCrop::Options::fields(Fields& f) {
  f(size, "size", "Pixels of both sides of the result, or [height, width].").required();
  f(scale, "scale", "Smallest and largest area of the part, relative to the image.").items(2);
  f(ratio, "ratio", "Smallest and largest width of the part, relative to its height.").items(2);
  f(interpolation, "interpolation", "How pixels are computed.");
  f(antialias, "antialias", "Use all pixels that a smaller pixel covers (bilinear and bicubic).");
}

RandomResizedCrop::RandomResizedCrop(const Options& options)
    : options_(detail::checked_options(options, "images.RandomResizedCrop")),
      size_(size_from(options_.size, "images.RandomResizedCrop")) {
  check_range(options_.scale, 0, /*open=*/true, "images.RandomResizedCrop", "scale");
  check_range(options_.ratio, 0, /*open=*/true, "images.RandomResizedCrop", "ratio");
}

Box RandomResizedCrop::draw_box(ImageSize size, SplitMix64& random) const {
  const auto height = static_cast<double>(size.height), width = static_cast<double>(size.width);
  const double lowest = options_.ratio[0], highest = options_.ratio[1];
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double area = height * width * uniform_in(random, options_.scale[0], options_.scale[1]);
    const double ratio = std::exp(uniform_in(random, std::log(lowest), std::log(highest)));
    const double w = std::nearbyint(std::sqrt(area * ratio)), h = std::nearbyint(std::sqrt(area / ratio));
    if (w < 1 || h < 1 || w > width || h > height) continue;
    Box box{0, 0, static_cast<int64_t>(h), static_cast<int64_t>(w)};
    box.top = whole_up_to(random, size.height - box.height);
    box.left = whole_up_to(random, size.width - box.width);
    return box;
  }
  Box box{0, 0, size.height, size.width};
  if (width / height < lowest)
    box.height = std::clamp<int64_t>(std::llrint(width / lowest), 1, size.height);
  else if (width / height > highest)
    box.width = std::clamp<int64_t>(std::llrint(height * highest), 1, size.width);
  box.top = (size.height - box.height) / 2;
  box.left = (size.width - box.width) / 2;
  return box;
}

std::optional<ImageSize> RandomResizedCrop::enough(ImageSize size, SplitMix64 random) const {
  // A JPEG that is decoded smaller is averaged, which these options exclude.
  if (!options_.antialias || options_.interpolation == Interpolation::nearest) return std::nullopt;
  if (size.height < 1 || size.width < 1) return std::nullopt;
  const Box box = draw_box(size, random);
  // One pixel more, since the part of the smaller image is rounded.
  const double factor = std::max(static_cast<double>(size_.height + 1) / static_cast<double>(box.height),
                                 static_cast<double>(size_.width + 1) / static_cast<double>(box.width));
  if (factor >= 1) return std::nullopt;
  const auto part_of = [&](int64_t pixels) {
    return static_cast<int64_t>(std::ceil(static_cast<double>(pixels) * factor));
  };
  return ImageSize{part_of(size.height), part_of(size.width)};
}

Tensor RandomResizedCrop::apply(const Tensor& image, SplitMix64& random) const {
  check_uint8(image, "images.RandomResizedCrop");
  return resized_crop(image, draw_box(size_of(image), random), size_, options_.interpolation, options_.antialias);
}

Tensor RandomResizedCrop::apply_to_mask(const Tensor& mask, SplitMix64& random) const {
  return resized_crop(mask, draw_box(size_of(mask), random), size_, Interpolation::nearest, /*antialias=*/false);
}

[[maybe_unused]] static const bool registered_resize =
    Registry<ImageTransform>::add<Resize>("Resize", "Scales an image to a size.");
[[maybe_unused]] static const bool registered_random_resized_crop = Registry<ImageTransform>::add<RandomResizedCrop>(
    "RandomResizedCrop", "Scales a random part of random area and aspect ratio to a size.");

}  // namespace fulgur::images
