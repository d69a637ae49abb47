#include <algorithm>
#include <cmath>

#include "batch_ops.h"
#include "drawing.h"
#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/options/checked_options.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/images/geometry_transforms.h"
#include "kernels/pixels.h"

namespace fulgur::images {

void CenterCrop::Options::fields(Fields& f) {
  f(size, "size", "Pixels of both sides, or [height, width].").required();
  f(fill, "fill", "Value of pixels outside of a smaller image, or one per channel.");
}

CenterCrop::CenterCrop(const Options& options)
    : options_(detail::checked_options(options, "images.CenterCrop")),
      size_(size_from(options_.size, "images.CenterCrop")) {
  check_values(options_.fill, "images.CenterCrop", "fill");
}

namespace {

constexpr double kOutsideOfMask = ImageTransform::kIgnoredPixel;

// The middle of `image`.
Tensor middle_of(const Tensor& image, ImageSize wanted_size, c10::ArrayRef<double> fill) {
  check_image(image, "images.CenterCrop");
  // torchvision rounds halves to even, but cuts them in the padding.
  const auto first = [](int64_t pixels, int64_t wanted) {
    return wanted > pixels ? -((wanted - pixels) / 2)
                           : static_cast<int64_t>(std::llrint(static_cast<double>(pixels - wanted) / 2));
  };
  const ImageSize size = size_of(image);
  const Box box{first(size.height, wanted_size.height), first(size.width, wanted_size.width), wanted_size.height,
                wanted_size.width};
  return window(image, box, PaddingMode::constant, fill);
}

}  // namespace

Tensor CenterCrop::apply(const Tensor& image, SplitMix64&) const {
  return middle_of(image, size_, options_.fill.values);
}
Tensor CenterCrop::apply_to_mask(const Tensor& mask, SplitMix64&) const {
  return middle_of(mask, size_, kOutsideOfMask);
}

void Pad::Options::fields(Fields& f) {
  f(padding, "padding", "Pixels: one number, [left and right, top and bottom] or [left, top, right, bottom].")
      .required();
  f(padding_mode, "padding_mode", "What the new pixels show: a constant, the image mirrored, or its border.");
  f(fill, "fill", "Value of the new pixels in the mode `constant`, or one per channel.");
}

Pad::Pad(const Options& options) : options_(detail::checked_options(options, "images.Pad")) {
  const Sides sides = sides_from(options_.padding, "images.Pad");
  left_ = sides.left, top_ = sides.top, right_ = sides.right, bottom_ = sides.bottom;
  check_values(options_.fill, "images.Pad", "fill");
}

Tensor Pad::apply(const Tensor& image, SplitMix64&) const {
  check_image(image, "images.Pad");
  const ImageSize size = size_of(image);
  return window(image, {-top_, -left_, size.height + top_ + bottom_, size.width + left_ + right_},
                options_.padding_mode, options_.fill.values);
}

Tensor Pad::apply_to_mask(const Tensor& mask, SplitMix64&) const {
  const ImageSize size = size_of(mask);
  return window(mask, {-top_, -left_, size.height + top_ + bottom_, size.width + left_ + right_}, options_.padding_mode,
                kOutsideOfMask);
}

void RandomCrop::Options::fields(Fields& f) {
  f(size, "size", "Pixels of both sides of the part, or [height, width].").required();
  f(padding, "padding",
    "Pixels that are added first: one number, [left and right, top and bottom] or [left, top, right, bottom].");
  f(padding_mode, "padding_mode", "What the new pixels show: a constant, the image mirrored, or its border.");
  f(fill, "fill", "Value of the new pixels in the mode `constant`, or one per channel.");
}

RandomCrop::RandomCrop(const Options& options)
    : options_(detail::checked_options(options, "images.RandomCrop")),
      size_(size_from(options_.size, "images.RandomCrop")) {
  const Sides sides = sides_from(options_.padding, "images.RandomCrop");
  left_ = sides.left, top_ = sides.top, right_ = sides.right, bottom_ = sides.bottom;
  check_values(options_.fill, "images.RandomCrop", "fill");
}

void RandomCrop::draw(ImageSize size, SplitMix64& random, float* row) const {
  const int64_t spare_rows = size.height + top_ + bottom_ - size_.height;
  const int64_t spare_columns = size.width + left_ + right_ - size_.width;
  if (spare_rows < 0 || spare_columns < 0)
    throw DataError(
        cat("[images.RandomCrop] an image with its padding must not be smaller than the part; the image "
            "is ",
            size.height, " x ", size.width, ", the part ", size_.height, " x ", size_.width,
            ". Put Resize before it, or set padding."));
  row[0] = static_cast<float>(whole_up_to(random, spare_rows) - top_);
  row[1] = static_cast<float>(whole_up_to(random, spare_columns) - left_);
}

Tensor RandomCrop::apply(const Tensor& image, SplitMix64& random) const {
  check_image(image, "images.RandomCrop");
  float row[2];
  draw(size_of(image), random, row);
  const Box box{static_cast<int64_t>(row[0]), static_cast<int64_t>(row[1]), size_.height, size_.width};
  return window(image, box, options_.padding_mode, options_.fill.values);
}

Tensor RandomCrop::apply_to_mask(const Tensor& mask, SplitMix64& random) const {
  float row[2];
  draw(size_of(mask), random, row);
  const Box box{static_cast<int64_t>(row[0]), static_cast<int64_t>(row[1]), size_.height, size_.width};
  return window(mask, box, options_.padding_mode, kOutsideOfMask);
}

Tensor RandomCrop::apply_batch(const Tensor& images, const Tensor& parameters) const {
  return batch_windows(images, parameters, size_, options_.padding_mode, options_.fill.values);
}

void RandomCrop::check_batch(ImageSize size, int64_t channels) const {
  per_channel(options_.fill.values, channels, "images.RandomCrop", "fill");
  if (size.height + top_ + bottom_ < size_.height || size.width + left_ + right_ < size_.width)
    throw ConfigError(
        cat("[images.RandomCrop] an image with its padding must not be smaller than the part; the images "
            "are ",
            size.height, " x ", size.width, ", the part ", size_.height, " x ", size_.width,
            ". Put Resize before it, or set padding."));
  if (options_.padding_mode == PaddingMode::reflect &&
      (std::max(top_, bottom_) >= size.height || std::max(left_, right_) >= size.width))
    throw ConfigError(cat("[images.RandomCrop] a reflected padding must be smaller than the image; the images are ",
                          size.height, " x ", size.width, ". Use padding_mode: edge or a smaller padding."));
}

[[maybe_unused]] static const bool registered_center_crop =
    Registry<ImageTransform>::add<CenterCrop>("CenterCrop", "Takes the middle of an image.");
[[maybe_unused]] static const bool registered_pad =
    Registry<ImageTransform>::add<Pad>("Pad", "Adds pixels at the sides of an image.");
[[maybe_unused]] static const bool registered_random_crop = Registry<ImageTransform>::add<RandomCrop>(
    "RandomCrop", "Takes a part of fixed size from a random place of the padded image.");

}  // namespace fulgur::images
