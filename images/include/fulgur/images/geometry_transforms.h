#pragma once

#include <optional>
#include <vector>

#include "fulgur/images/batch_image_transform.h"
#include "fulgur/images/functional.h"
#include "fulgur/images/one_or_more.h"

/// Transforms that move pixels. Constructors throw a ConfigError for options out of range. Images are uint8 unless a
/// class says otherwise.
namespace fulgur::images {

/// The shorter side (one value) or height and width (two) in pixels.
class FULGUR_API Resize final : public ImageTransform {
 public:
  struct FULGUR_API Options {
    OneOrMore<int64_t> size = {};
    Interpolation interpolation = Interpolation::bilinear;
    bool antialias = true;
    void fields(Fields& f);
  };
  explicit Resize(const Options& options);
  Tensor apply(const Tensor& image, SplitMix64& random) const override;
  Tensor apply_to_mask(const Tensor& mask, SplitMix64& random) const override;
  /// Height and width of the result for an image of `size`.
  ImageSize target(ImageSize size) const;

 private:
  Options options_;
};

/// A part of fixed size from a random place and of random area and aspect ratio, as Inception was trained. If that
/// finds no part in ten attempts, the largest part in the middle with an allowed ratio.
class FULGUR_API RandomResizedCrop final : public ImageTransform {
 public:
  struct FULGUR_API Options {
    OneOrMore<int64_t> size = {};
    std::vector<double> scale = {0.08, 1.0};
    std::vector<double> ratio = {3.0 / 4, 4.0 / 3};
    Interpolation interpolation = Interpolation::bilinear;
    bool antialias = true;
    void fields(Fields& f);
  };
  explicit RandomResizedCrop(const Options& options);
  Tensor apply(const Tensor& image, SplitMix64& random) const override;
  Tensor apply_to_mask(const Tensor& mask, SplitMix64& random) const override;
  /// The part that is drawn then has at least as many pixels as the result, if it has so many in the file.
  std::optional<ImageSize> enough(ImageSize size, SplitMix64 random) const override;
  /// Draws the part for an image of `size`. It covers the same part of a smaller copy of the image, up to rounding.
  Box draw_box(ImageSize size, SplitMix64& random) const;

 private:
  Options options_;
  ImageSize size_;
};

/// The middle of an image; a smaller image is padded with `fill`. Takes uint8 and float32.
class FULGUR_API CenterCrop final : public ImageTransform {
 public:
  struct FULGUR_API Options {
    OneOrMore<int64_t> size = {};
    OneOrMore<double> fill = 0.0;
    void fields(Fields& f);
  };
  explicit CenterCrop(const Options& options);
  Tensor apply(const Tensor& image, SplitMix64& random) const override;
  Tensor apply_to_mask(const Tensor& mask, SplitMix64& random) const override;

 private:
  Options options_;
  ImageSize size_;
};

/// Adds pixels at the sides: all (one value); left and right, top and bottom (two); left, top, right, bottom (four).
/// Takes uint8 and float32.
class FULGUR_API Pad final : public ImageTransform {
 public:
  struct FULGUR_API Options {
    OneOrMore<int64_t> padding = {};
    PaddingMode padding_mode = PaddingMode::constant;
    OneOrMore<double> fill = 0.0;
    void fields(Fields& f);
  };
  explicit Pad(const Options& options);
  Tensor apply(const Tensor& image, SplitMix64& random) const override;
  Tensor apply_to_mask(const Tensor& mask, SplitMix64& random) const override;

 private:
  Options options_;
  int64_t left_, top_, right_, bottom_;
};

/// A part of fixed size from a random place of the padded image. Takes uint8 and float32.
class FULGUR_API RandomCrop final : public ImageTransform, public BatchImageTransform {
 public:
  struct FULGUR_API Options {
    OneOrMore<int64_t> size = {};
    OneOrMore<int64_t> padding = int64_t{0};
    PaddingMode padding_mode = PaddingMode::constant;
    OneOrMore<double> fill = 0.0;
    void fields(Fields& f);
  };
  explicit RandomCrop(const Options& options);
  /// Throws a DataError if the padded image is smaller than the part.
  Tensor apply(const Tensor& image, SplitMix64& random) const override;
  Tensor apply_to_mask(const Tensor& mask, SplitMix64& random) const override;
  int64_t parameter_count() const override { return 2; }
  void draw(ImageSize size, SplitMix64& random, float* row) const override;
  Tensor apply_batch(const Tensor& images, const Tensor& parameters) const override;
  ImageSize size_after(ImageSize) const override { return size_; }
  void check_batch(ImageSize size, int64_t channels) const override;

 private:
  Options options_;
  ImageSize size_;
  int64_t left_, top_, right_, bottom_;
};

/// Mirrors left and right. Takes uint8 and float32.
class FULGUR_API RandomHorizontalFlip final : public ImageTransform, public BatchImageTransform {
 public:
  struct FULGUR_API Options {
    double p = 0.5;
    void fields(Fields& f);
  };
  explicit RandomHorizontalFlip(const Options& options);
  Tensor apply(const Tensor& image, SplitMix64& random) const override;
  Tensor apply_to_mask(const Tensor& mask, SplitMix64& random) const override;
  int64_t parameter_count() const override { return 1; }
  void draw(ImageSize size, SplitMix64& random, float* row) const override;
  Tensor apply_batch(const Tensor& images, const Tensor& parameters) const override;

 private:
  Options options_;
};

/// Mirrors top and bottom. Takes uint8 and float32.
class FULGUR_API RandomVerticalFlip final : public ImageTransform, public BatchImageTransform {
 public:
  struct FULGUR_API Options {
    double p = 0.5;
    void fields(Fields& f);
  };
  explicit RandomVerticalFlip(const Options& options);
  Tensor apply(const Tensor& image, SplitMix64& random) const override;
  Tensor apply_to_mask(const Tensor& mask, SplitMix64& random) const override;
  int64_t parameter_count() const override { return 1; }
  void draw(ImageSize size, SplitMix64& random, float* row) const override;
  Tensor apply_batch(const Tensor& images, const Tensor& parameters) const override;

 private:
  Options options_;
};

/// Rotates around the middle by an angle from [-degrees, degrees], or from [degrees[0], degrees[1]]. The image keeps
/// its size.
class FULGUR_API RandomRotation final : public ImageTransform {
 public:
  struct FULGUR_API Options {
    OneOrMore<double> degrees = {};
    Interpolation interpolation = Interpolation::nearest;
    OneOrMore<double> fill = 0.0;
    void fields(Fields& f);
  };
  explicit RandomRotation(const Options& options);
  Tensor apply(const Tensor& image, SplitMix64& random) const override;
  Tensor apply_to_mask(const Tensor& mask, SplitMix64& random) const override;

 private:
  Options options_;
  double from_, to_;
};

/// Rotates, moves, scales and shears around the middle, all at once. The image keeps its size.
class FULGUR_API RandomAffine final : public ImageTransform {
 public:
  struct FULGUR_API Options {
    OneOrMore<double> degrees = {};
    std::vector<double> translate = {0, 0};  ///< largest part of width and height
    std::vector<double> scale = {1, 1};
    OneOrMore<double> shear = 0.0;  ///< degrees: x in [-s, s]; x in [s0, s1]; or also y in [s2, s3]
    Interpolation interpolation = Interpolation::nearest;
    OneOrMore<double> fill = 0.0;
    void fields(Fields& f);
  };
  explicit RandomAffine(const Options& options);
  Tensor apply(const Tensor& image, SplitMix64& random) const override;
  Tensor apply_to_mask(const Tensor& mask, SplitMix64& random) const override;
  /// Draws the parameters for an image of `size`.
  AffineParameters draw_parameters(ImageSize size, SplitMix64& random) const;

 private:
  Options options_;
  double from_, to_;
  std::vector<double> shear_;  // x from, x to, y from, y to
};

}  // namespace fulgur::images
