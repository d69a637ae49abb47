#include "fulgur/images/auto_augment.h"

#include <cmath>
#include <numbers>

#include "drawing.h"
#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/options/checked_options.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "kernels/pixels.h"

namespace fulgur::images {
namespace {

// torch.linspace(from, to, bins)[bin], which is float32.
double step_of(double from, double to, int64_t bin, int64_t bins) {
  return static_cast<float>(bins == 1 ? from
                                      : from + (to - from) * static_cast<double>(bin) / static_cast<double>(bins - 1));
}

double posterize_bits(double least, int64_t bin, int64_t bins) {
  if (bins == 1) return 8;
  return 8 - std::nearbyint(static_cast<double>(bin) / (static_cast<double>(bins - 1) / least));
}

bool is_signed(AugmentOperation operation) {
  return operation >= AugmentOperation::shear_x && operation <= AugmentOperation::sharpness;
}

void check_augment(Interpolation interpolation, const char* who) {
  if (interpolation == Interpolation::bicubic)
    throw ConfigError(cat("[", who, "] interpolation must be nearest or bilinear; got bicubic."));
}

double with_random_sign(AugmentOperation operation, double magnitude, SplitMix64& random) {
  return is_signed(operation) && happens(random, 0.5) ? -magnitude : magnitude;
}

AugmentOperation random_operation(SplitMix64& random) {
  return static_cast<AugmentOperation>(whole_up_to(random, kAugmentOperations - 1));
}

}  // namespace

Tensor augment(const Tensor& image, AugmentOperation operation, double magnitude, Interpolation interpolation,
               c10::ArrayRef<double> fill) {
  check_colors(image, "images.augment");
  const auto degrees = [](double tangent) { return std::atan(tangent) * 180 / std::numbers::pi; };
  AffineParameters moved;
  switch (operation) {
    case AugmentOperation::identity:
      return image;
    case AugmentOperation::shear_x:
      moved.shear_x = degrees(magnitude);
      moved.around_corner = true;
      return affine(image, moved, interpolation, fill);
    case AugmentOperation::shear_y:
      moved.shear_y = degrees(magnitude);
      moved.around_corner = true;
      return affine(image, moved, interpolation, fill);
    case AugmentOperation::translate_x:
      moved.translate_x = std::trunc(magnitude);
      return affine(image, moved, interpolation, fill);
    case AugmentOperation::translate_y:
      moved.translate_y = std::trunc(magnitude);
      return affine(image, moved, interpolation, fill);
    case AugmentOperation::rotate:
      return rotate(image, magnitude, interpolation, fill);
    case AugmentOperation::brightness:
      return adjust_brightness(image, 1 + magnitude);
    case AugmentOperation::color:
      return adjust_saturation(image, 1 + magnitude);
    case AugmentOperation::contrast:
      return adjust_contrast(image, 1 + magnitude);
    case AugmentOperation::sharpness:
      return adjust_sharpness(image, 1 + magnitude);
    case AugmentOperation::posterize:
      return posterize(image, static_cast<int64_t>(magnitude));
    case AugmentOperation::solarize:
      return solarize(image, magnitude);
    case AugmentOperation::autocontrast:
      return autocontrast(image);
    case AugmentOperation::equalize:
      return equalize(image);
  }
  return image;
}

void RandAugment::Options::fields(Fields& f) {
  f(num_ops, "num_ops", "Operations per image.").range(0, 100);
  f(magnitude, "magnitude", "How strong they are: a bin from 0 on.").at_least(0);
  f(num_magnitude_bins, "num_magnitude_bins", "Number of bins; the last is the strongest.").range(2, 65536);
  f(interpolation, "interpolation", "How moved pixels are computed: nearest or bilinear.");
  f(fill, "fill", "Value of pixels outside of the image, or one per channel; [] as torchvision's None.");
}

RandAugment::RandAugment(const Options& options) : options_(detail::checked_options(options, "images.RandAugment")) {
  check_augment(options_.interpolation, "images.RandAugment");
  if (options_.magnitude >= options_.num_magnitude_bins)
    throw ConfigError(cat("[images.RandAugment] magnitude must be less than num_magnitude_bins; got ",
                          options_.magnitude, " of ", options_.num_magnitude_bins, "."));
}

double RandAugment::magnitude_of(AugmentOperation operation, ImageSize size) const {
  const int64_t bin = options_.magnitude, bins = options_.num_magnitude_bins;
  switch (operation) {
    case AugmentOperation::shear_x:
    case AugmentOperation::shear_y:
      return step_of(0, 0.3, bin, bins);
    case AugmentOperation::translate_x:
      return step_of(0, 150.0 / 331 * static_cast<double>(size.width), bin, bins);
    case AugmentOperation::translate_y:
      return step_of(0, 150.0 / 331 * static_cast<double>(size.height), bin, bins);
    case AugmentOperation::rotate:
      return step_of(0, 30, bin, bins);
    case AugmentOperation::brightness:
    case AugmentOperation::color:
    case AugmentOperation::contrast:
    case AugmentOperation::sharpness:
      return step_of(0, 0.9, bin, bins);
    case AugmentOperation::posterize:
      return posterize_bits(4, bin, bins);
    case AugmentOperation::solarize:
      return step_of(255, 0, bin, bins);
    default:
      return 0;
  }
}

Tensor RandAugment::apply(const Tensor& image, SplitMix64& random) const {
  check_colors(image, "images.RandAugment");
  Tensor result = image;
  for (int64_t i = 0; i < options_.num_ops; ++i) {
    const AugmentOperation operation = random_operation(random);
    const double magnitude = with_random_sign(operation, magnitude_of(operation, size_of(result)), random);
    result = augment(result, operation, magnitude, options_.interpolation, options_.fill.values);
  }
  return result;
}

void TrivialAugmentWide::Options::fields(Fields& f) {
  f(num_magnitude_bins, "num_magnitude_bins", "Number of magnitudes.").range(2, 65536);
  f(interpolation, "interpolation", "How moved pixels are computed: nearest or bilinear.");
  f(fill, "fill", "Value of pixels outside of the image, or one per channel; [] as torchvision's None.");
}

TrivialAugmentWide::TrivialAugmentWide(const Options& options)
    : options_(detail::checked_options(options, "images.TrivialAugmentWide")) {
  check_augment(options_.interpolation, "images.TrivialAugmentWide");
}

double TrivialAugmentWide::magnitude_of(AugmentOperation operation, int64_t bin) const {
  const int64_t bins = options_.num_magnitude_bins;
  switch (operation) {
    case AugmentOperation::shear_x:
    case AugmentOperation::shear_y:
      return step_of(0, 0.99, bin, bins);
    case AugmentOperation::translate_x:
    case AugmentOperation::translate_y:
      return step_of(0, 32, bin, bins);
    case AugmentOperation::rotate:
      return step_of(0, 135, bin, bins);
    case AugmentOperation::brightness:
    case AugmentOperation::color:
    case AugmentOperation::contrast:
    case AugmentOperation::sharpness:
      return step_of(0, 0.99, bin, bins);
    case AugmentOperation::posterize:
      return posterize_bits(6, bin, bins);
    case AugmentOperation::solarize:
      return step_of(255, 0, bin, bins);
    default:
      return 0;
  }
}

Tensor TrivialAugmentWide::apply(const Tensor& image, SplitMix64& random) const {
  check_colors(image, "images.TrivialAugmentWide");
  const AugmentOperation operation = random_operation(random);
  const int64_t bin = whole_up_to(random, options_.num_magnitude_bins - 1);
  const double magnitude = with_random_sign(operation, magnitude_of(operation, bin), random);
  return augment(image, operation, magnitude, options_.interpolation, options_.fill.values);
}

[[maybe_unused]] static const bool registered_rand_augment =
    Registry<ImageTransform>::add<RandAugment>("RandAugment", "Applies random operations of equal magnitude.");
[[maybe_unused]] static const bool registered_trivial_augment_wide = Registry<ImageTransform>::add<TrivialAugmentWide>(
    "TrivialAugmentWide", "Applies one random operation of random magnitude.");

}  // namespace fulgur::images
