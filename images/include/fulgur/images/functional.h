#pragma once

#include <c10/util/ArrayRef.h>

#include <array>
#include <cstdint>
#include <vector>

#include "fulgur/core/options/enum_names.h"
#include "fulgur/images/image_transform.h"

/// Operations on one image (C, H, W) on the CPU, with given parameters: what the transforms call with the numbers that
/// they have drawn. Names, geometry and values are those of torchvision.transforms.v2.functional for tensors. The image
/// may have any strides (an interleaved image is a permuted view), is never changed, and the result has its dtype; a
/// result may share its memory. All run on the calling thread. Functions that say "uint8" throw a ConfigError for
/// another dtype, since the order of the transforms is at fault; an image that cannot be taken is a DataError.
namespace fulgur::images {

enum class Interpolation { nearest, bilinear, bicubic };
constexpr auto enum_names(Interpolation) {
  return std::to_array<EnumName<Interpolation>>({{Interpolation::nearest, "nearest"},
                                                 {Interpolation::bilinear, "bilinear"},
                                                 {Interpolation::bicubic, "bicubic"}});
}

/// What lies outside of an image: a value; the image without its border pixel, mirrored; or the border pixel.
enum class PaddingMode { constant, reflect, edge };
constexpr auto enum_names(PaddingMode) {
  return std::to_array<EnumName<PaddingMode>>(
      {{PaddingMode::constant, "constant"}, {PaddingMode::reflect, "reflect"}, {PaddingMode::edge, "edge"}});
}

/// A rectangle of pixels; `top` and `left` may be negative for functions that pad.
struct Box {
  int64_t top = 0;
  int64_t left = 0;
  int64_t height = 0;
  int64_t width = 0;
  friend bool operator==(const Box&, const Box&) = default;
};

// ---- geometry ----

/// The part `box` of an image, which is padded as far as the box reaches outside of it. A box inside the image gives a
/// view. `fill` has one value, or one per channel; empty is 0. Reflected pixels need a padding smaller than the image,
/// else a DataError is thrown.
FULGUR_API Tensor window(const Tensor& image, const Box& box, PaddingMode mode = PaddingMode::constant,
                         c10::ArrayRef<double> fill = {});
FULGUR_API Tensor horizontal_flip(const Tensor& image);
FULGUR_API Tensor vertical_flip(const Tensor& image);
/// uint8. The part `box`, which is inside the image, in another size. `antialias` takes all pixels that an output pixel
/// covers, as Pillow does; without it, bilinear takes 2 × 2 and bicubic 4 × 4. The sums are in 64ths of a level and
/// rounded once, so a value differs from torchvision's, which rounds twice or in float32, by at most 1.
FULGUR_API Tensor resized_crop(const Tensor& image, const Box& box, ImageSize size, Interpolation interpolation,
                               bool antialias = true);
FULGUR_API Tensor resize(const Tensor& image, ImageSize size, Interpolation interpolation, bool antialias = true);

/// Parameters of `affine`, with torchvision's meaning.
struct AffineParameters {
  double angle = 0;                         ///< degrees, clockwise
  double translate_x = 0, translate_y = 0;  ///< pixels
  double scale = 1;
  double shear_x = 0, shear_y = 0;  ///< degrees
  bool around_corner = false;       ///< around the top left corner (`center=[0, 0]`) instead of the middle
};
/// uint8; nearest or bilinear. `fill` has one value or one per channel; empty is torchvision's None, which gives black
/// and, for bilinear, other values at the border than a fill of 0.
FULGUR_API Tensor affine(const Tensor& image, const AffineParameters& parameters, Interpolation interpolation,
                         c10::ArrayRef<double> fill = {});
/// Rotates counter-clockwise by `angle` degrees around the middle.
FULGUR_API Tensor rotate(const Tensor& image, double angle, Interpolation interpolation,
                         c10::ArrayRef<double> fill = {});

// ---- colour, uint8 ----

FULGUR_API Tensor adjust_brightness(const Tensor& image, double factor);
/// 1 or 3 channels, as the functions below that name no number.
FULGUR_API Tensor adjust_contrast(const Tensor& image, double factor);
FULGUR_API Tensor adjust_saturation(const Tensor& image, double factor);
/// `shift` is in [-0.5, 0.5], of a whole circle.
FULGUR_API Tensor adjust_hue(const Tensor& image, double shift);
FULGUR_API Tensor adjust_sharpness(const Tensor& image, double factor);
/// Grey values in 1 or 3 equal channels.
FULGUR_API Tensor to_grayscale(const Tensor& image, int64_t channels);
/// `kernel_size` is odd and less than twice the image's height and width.
FULGUR_API Tensor gaussian_blur(const Tensor& image, int64_t kernel_size, double sigma);
FULGUR_API Tensor invert(const Tensor& image);
/// Keeps the `bits` (0 to 8) highest bits.
FULGUR_API Tensor posterize(const Tensor& image, int64_t bits);
/// Inverts values of at least `threshold`.
FULGUR_API Tensor solarize(const Tensor& image, double threshold);
FULGUR_API Tensor autocontrast(const Tensor& image);
FULGUR_API Tensor equalize(const Tensor& image);

// ---- tensors ----

/// A copy whose part `box`, which is inside the image, has the value `fill` (one value, or one per channel).
FULGUR_API Tensor erase(const Tensor& image, const Box& box, c10::ArrayRef<double> fill);
/// float32 in [0, 1] from uint8; float32 is returned as it is.
FULGUR_API Tensor to_float(const Tensor& image);
/// (x - mean) / std as float32, where uint8 is divided by 255 first. `mean` and `std` have one value, or one per
/// channel.
FULGUR_API Tensor normalize(const Tensor& image, c10::ArrayRef<double> mean, c10::ArrayRef<double> std);

}  // namespace fulgur::images
