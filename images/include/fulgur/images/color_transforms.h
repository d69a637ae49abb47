#pragma once

#include <vector>

#include "fulgur/core/options/fields.h"
#include "fulgur/images/batch_image_transform.h"
#include "fulgur/images/functional.h"

/// Transforms that change values of uint8 images. Constructors throw a ConfigError for options out of range.
namespace fulgur::images {

/// Changes brightness, contrast, saturation and hue in a random order. A factor is drawn from [1 - x, 1 + x], not below
/// 0; the shift of the hue from [-hue, hue], of a whole circle. What is 0 is not changed. On batches without hue.
class FULGUR_API ColorJitter final : public ImageTransform, public BatchImageTransform {
 public:
  struct FULGUR_API Options {
    double brightness = 0;
    double contrast = 0;
    double saturation = 0;
    double hue = 0;
    void fields(Fields& f);
  };
  explicit ColorJitter(const Options& options);
  Tensor apply(const Tensor& image, SplitMix64& random) const override;
  Tensor apply_to_mask(const Tensor& mask, SplitMix64&) const override { return mask; }
  /// The four operations (0 brightness, 1 contrast, 2 saturation, 3 hue) in their order, then their four numbers.
  int64_t parameter_count() const override { return 8; }
  void draw(ImageSize size, SplitMix64& random, float* row) const override;
  Tensor apply_batch(const Tensor& images, const Tensor& parameters) const override;
  void check_batch(ImageSize size, int64_t channels) const override;

 private:
  Options options_;
};

/// Grey values, in one channel or in three equal ones.
class FULGUR_API Grayscale final : public ImageTransform {
 public:
  struct FULGUR_API Options {
    int64_t num_output_channels = 1;
    void fields(Fields& f);
  };
  explicit Grayscale(const Options& options);
  Tensor apply(const Tensor& image, SplitMix64& random) const override;
  Tensor apply_to_mask(const Tensor& mask, SplitMix64&) const override { return mask; }

 private:
  Options options_;
};

/// Grey values in all channels, with probability p.
class FULGUR_API RandomGrayscale final : public ImageTransform {
 public:
  struct FULGUR_API Options {
    double p = 0.1;
    void fields(Fields& f);
  };
  explicit RandomGrayscale(const Options& options);
  Tensor apply(const Tensor& image, SplitMix64& random) const override;
  Tensor apply_to_mask(const Tensor& mask, SplitMix64&) const override { return mask; }

 private:
  Options options_;
};

/// Blurs with a random standard deviation, with probability p.
class FULGUR_API GaussianBlur final : public ImageTransform {
 public:
  struct FULGUR_API Options {
    int64_t kernel_size = 0;
    std::vector<double> sigma = {0.1, 2.0};
    double p = 1;
    void fields(Fields& f);
  };
  explicit GaussianBlur(const Options& options);
  Tensor apply(const Tensor& image, SplitMix64& random) const override;
  Tensor apply_to_mask(const Tensor& mask, SplitMix64&) const override { return mask; }

 private:
  Options options_;
};

}  // namespace fulgur::images
