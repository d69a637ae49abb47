#pragma once

#include <vector>

#include "fulgur/images/batch_image_transform.h"
#include "fulgur/images/functional.h"
#include "fulgur/images/one_or_more.h"

/// From bytes to float32. Constructors throw a ConfigError for options out of range.
namespace fulgur::images {

/// uint8 to float32 in [0, 1]; float32 stays as it is.
class FULGUR_API ToFloat final : public ImageTransform, public BatchImageTransform {
 public:
  Tensor apply(const Tensor& image, SplitMix64& random) const override;
  Tensor apply_to_mask(const Tensor& mask, SplitMix64&) const override { return mask; }
  int64_t parameter_count() const override { return 0; }
  void draw(ImageSize size, SplitMix64& random, float* row) const override;
  Tensor apply_batch(const Tensor& images, const Tensor& parameters) const override;
};

/// (x - mean) / std as float32; uint8 is divided by 255 first, so ToFloat before it is not needed.
class FULGUR_API Normalize final : public ImageTransform, public BatchImageTransform {
 public:
  struct FULGUR_API Options {
    OneOrMore<double> mean = {};
    OneOrMore<double> std = {};
    void fields(Fields& f);
  };
  explicit Normalize(const Options& options);
  Tensor apply(const Tensor& image, SplitMix64& random) const override;
  Tensor apply_to_mask(const Tensor& mask, SplitMix64&) const override { return mask; }
  int64_t parameter_count() const override { return 0; }
  void draw(ImageSize size, SplitMix64& random, float* row) const override;
  Tensor apply_batch(const Tensor& images, const Tensor& parameters) const override;
  void check_batch(ImageSize size, int64_t channels) const override;

 private:
  Options options_;
};

}  // namespace fulgur::images
