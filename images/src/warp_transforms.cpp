#include <algorithm>
#include <cmath>
#include <tuple>

#include "drawing.h"
#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/options/checked_options.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/images/geometry_transforms.h"
#include "kernels/pixels.h"

namespace fulgur::images {
namespace {

void check_warp(Interpolation interpolation, const OneOrMore<double>& fill, const char* who) {
  if (interpolation == Interpolation::bicubic)
    throw ConfigError(cat("[", who, "] interpolation must be nearest or bilinear; got bicubic."));
  check_values(fill, who, "fill");
}

}  // namespace

void RandomRotation::Options::fields(Fields& f) {
  f(degrees, "degrees", "Largest angle in both directions, or [smallest, largest], counter-clockwise.").required();
  f(interpolation, "interpolation", "How pixels are computed: nearest or bilinear.");
  f(fill, "fill", "Value of pixels outside of the image, or one per channel.");
}

RandomRotation::RandomRotation(const Options& options)
    : options_(detail::checked_options(options, "images.RandomRotation")) {
  std::tie(from_, to_) = symmetric_range(options_.degrees, "images.RandomRotation", "degrees");
  check_warp(options_.interpolation, options_.fill, "images.RandomRotation");
}

Tensor RandomRotation::apply(const Tensor& image, SplitMix64& random) const {
  return rotate(image, uniform_in(random, from_, to_), options_.interpolation, options_.fill.values);
}

Tensor RandomRotation::apply_to_mask(const Tensor& mask, SplitMix64& random) const {
  return rotate(mask, uniform_in(random, from_, to_), Interpolation::nearest, double{kIgnoredPixel});
}

void RandomAffine::Options::fields(Fields& f) {
  f(degrees, "degrees", "Largest angle in both directions, or [smallest, largest], clockwise.").required();
  f(translate, "translate", "Largest move in both directions, relative to width and height.").items(2).range(0, 1);
  f(scale, "scale", "Smallest and largest factor of the size.").items(2);
  f(shear, "shear", "Degrees: largest shear in x, [smallest, largest] in x, or these in x and in y.");
  f(interpolation, "interpolation", "How pixels are computed: nearest or bilinear.");
  f(fill, "fill", "Value of pixels outside of the image, or one per channel.");
}

RandomAffine::RandomAffine(const Options& options) : options_(detail::checked_options(options, "images.RandomAffine")) {
  std::tie(from_, to_) = symmetric_range(options_.degrees, "images.RandomAffine", "degrees");
  check_range(options_.scale, 0, /*open=*/true, "images.RandomAffine", "scale");
  check_warp(options_.interpolation, options_.fill, "images.RandomAffine");
  const auto& shear = options_.shear.values;
  if (shear.size() == 4) {
    for (const size_t i : {size_t{0}, size_t{2}})
      symmetric_range({shear[i], shear[i + 1]}, "images.RandomAffine", "shear");
    shear_ = shear;
  } else {
    const auto [from, to] = symmetric_range(options_.shear, "images.RandomAffine", "shear");
    shear_ = {from, to, 0, 0};
  }
  if (std::any_of(shear_.begin(), shear_.end(), [](double degrees) { return std::abs(degrees) >= 90; }))
    throw ConfigError("[images.RandomAffine] a shear must be less than 90 degrees.");
}

AffineParameters RandomAffine::draw_parameters(ImageSize size, SplitMix64& random) const {
  AffineParameters drawn;
  drawn.angle = uniform_in(random, from_, to_);
  const double far_x = options_.translate[0] * static_cast<double>(size.width);
  const double far_y = options_.translate[1] * static_cast<double>(size.height);
  drawn.translate_x = std::nearbyint(uniform_in(random, -far_x, far_x));
  drawn.translate_y = std::nearbyint(uniform_in(random, -far_y, far_y));
  drawn.scale = uniform_in(random, options_.scale[0], options_.scale[1]);
  drawn.shear_x = uniform_in(random, shear_[0], shear_[1]);
  drawn.shear_y = uniform_in(random, shear_[2], shear_[3]);
  return drawn;
}

Tensor RandomAffine::apply(const Tensor& image, SplitMix64& random) const {
  check_uint8(image, "images.RandomAffine");
  return affine(image, draw_parameters(size_of(image), random), options_.interpolation, options_.fill.values);
}

Tensor RandomAffine::apply_to_mask(const Tensor& mask, SplitMix64& random) const {
  return affine(mask, draw_parameters(size_of(mask), random), Interpolation::nearest, double{kIgnoredPixel});
}

[[maybe_unused]] static const bool registered_random_rotation =
    Registry<ImageTransform>::add<RandomRotation>("RandomRotation", "Rotates by a random angle.");
[[maybe_unused]] static const bool registered_random_affine =
    Registry<ImageTransform>::add<RandomAffine>("RandomAffine", "Rotates, moves, scales and shears at random.");

}  // namespace fulgur::images
