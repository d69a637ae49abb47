#pragma once

#include <vector>

#include "fulgur/images/functional.h"
#include "fulgur/images/one_or_more.h"

namespace fulgur::images {

/// The operations of RandAugment and TrivialAugmentWide, in torchvision's order.
enum class AugmentOperation {
  identity,
  shear_x,
  shear_y,
  translate_x,
  translate_y,
  rotate,
  brightness,
  color,
  contrast,
  sharpness,
  posterize,
  solarize,
  autocontrast,
  equalize
};
constexpr int64_t kAugmentOperations = 14;

/// Applies an operation to a uint8 image as torchvision does; `magnitude` has its sign.
FULGUR_API Tensor augment(const Tensor& image, AugmentOperation operation, double magnitude,
                          Interpolation interpolation, c10::ArrayRef<double> fill);

/// Applies `num_ops` random operations of equal magnitude (Cubuk et al. 2019). uint8.
class FULGUR_API RandAugment final : public ImageTransform {
 public:
  struct FULGUR_API Options {
    int64_t num_ops = 2;
    int64_t magnitude = 9;
    int64_t num_magnitude_bins = 31;
    Interpolation interpolation = Interpolation::nearest;
    OneOrMore<double> fill = 0.0;
    void fields(Fields& f);
  };
  explicit RandAugment(const Options& options);
  Tensor apply(const Tensor& image, SplitMix64& random) const override;
  /// The magnitude of an operation for an image of `size`, without sign.
  double magnitude_of(AugmentOperation operation, ImageSize size) const;

 private:
  Options options_;
};

/// Applies one random operation of random magnitude (Müller and Hutter 2021). uint8.
class FULGUR_API TrivialAugmentWide final : public ImageTransform {
 public:
  struct FULGUR_API Options {
    int64_t num_magnitude_bins = 31;
    Interpolation interpolation = Interpolation::nearest;
    OneOrMore<double> fill = 0.0;
    void fields(Fields& f);
  };
  explicit TrivialAugmentWide(const Options& options);
  Tensor apply(const Tensor& image, SplitMix64& random) const override;
  /// The magnitude of an operation for `bin`, without sign.
  double magnitude_of(AugmentOperation operation, int64_t bin) const;

 private:
  Options options_;
};

}  // namespace fulgur::images
