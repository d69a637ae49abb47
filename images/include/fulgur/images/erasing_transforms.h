#pragma once

#include <vector>

#include "fulgur/images/batch_image_transform.h"
#include "fulgur/images/functional.h"
#include "fulgur/images/one_or_more.h"

/// Transforms that hide a part of an image, uint8 or float32. Constructors throw a ConfigError for options out of
/// range.
namespace fulgur::images {

/// Hides a square with its middle at a random pixel; parts outside of the image do not count (DeVries and Taylor 2017).
class FULGUR_API Cutout final : public ImageTransform, public BatchImageTransform {
 public:
  struct FULGUR_API Options {
    int64_t length = 0;
    double p = 1;
    OneOrMore<double> value = 0.0;
    void fields(Fields& f);
  };
  explicit Cutout(const Options& options);
  Tensor apply(const Tensor& image, SplitMix64& random) const override;
  Tensor apply_to_mask(const Tensor& mask, SplitMix64&) const override { return mask; }
  /// Top, left, height and width; all 0 if nothing is hidden.
  int64_t parameter_count() const override { return 4; }
  void draw(ImageSize size, SplitMix64& random, float* row) const override;
  Tensor apply_batch(const Tensor& images, const Tensor& parameters) const override;
  void check_batch(ImageSize size, int64_t channels) const override;

 private:
  Options options_;
};

/// Hides a rectangle of random area and aspect ratio (Zhong et al. 2017).
class FULGUR_API RandomErasing final : public ImageTransform, public BatchImageTransform {
 public:
  struct FULGUR_API Options {
    double p = 0.5;
    std::vector<double> scale = {0.02, 0.33};
    std::vector<double> ratio = {0.3, 3.3};
    OneOrMore<double> value = 0.0;
    void fields(Fields& f);
  };
  explicit RandomErasing(const Options& options);
  Tensor apply(const Tensor& image, SplitMix64& random) const override;
  Tensor apply_to_mask(const Tensor& mask, SplitMix64&) const override { return mask; }
  /// Top, left, height and width; all 0 if nothing is hidden.
  int64_t parameter_count() const override { return 4; }
  void draw(ImageSize size, SplitMix64& random, float* row) const override;
  Tensor apply_batch(const Tensor& images, const Tensor& parameters) const override;
  void check_batch(ImageSize size, int64_t channels) const override;

 private:
  Options options_;
};

}  // namespace fulgur::images
