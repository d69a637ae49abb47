#include "fulgur/images/tensor_transforms.h"

#include <algorithm>

#include "batch_ops.h"
#include "drawing.h"
#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/options/checked_options.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "kernels/pixels.h"

namespace fulgur::images {

Tensor ToFloat::apply(const Tensor& image, SplitMix64&) const { return to_float(image); }
void ToFloat::draw(ImageSize, SplitMix64&, float*) const {}
Tensor ToFloat::apply_batch(const Tensor& images, const Tensor&) const { return batch_to_float(images); }

void Normalize::Options::fields(Fields& f) {
  f(mean, "mean", "Mean of values in [0, 1], or one per channel.").required();
  f(std, "std", "Standard deviation of values in [0, 1], or one per channel.").required();
}

Normalize::Normalize(const Options& options) : options_(detail::checked_options(options, "images.Normalize")) {
  check_values(options_.mean, "images.Normalize", "mean");
  check_values(options_.std, "images.Normalize", "std");
  if (std::any_of(options_.std.values.begin(), options_.std.values.end(),
                  [](double value) { return !(static_cast<float>(value) > 0); }))
    throw ConfigError("[images.Normalize] std must be greater than 0 in each channel.");
}

Tensor Normalize::apply(const Tensor& image, SplitMix64&) const {
  return normalize(image, options_.mean.values, options_.std.values);
}
void Normalize::draw(ImageSize, SplitMix64&, float*) const {}

Tensor Normalize::apply_batch(const Tensor& images, const Tensor&) const {
  const int64_t channels = images.size(1);
  const Tensor mean =
      channel_values(images, per_channel(options_.mean.values, channels, "images.Normalize", "mean"), at::kFloat);
  const Tensor std =
      channel_values(images, per_channel(options_.std.values, channels, "images.Normalize", "std"), at::kFloat);
  return batch_to_float(images).sub(mean).div_(std);
}

void Normalize::check_batch(ImageSize, int64_t channels) const {
  per_channel(options_.mean.values, channels, "images.Normalize", "mean");
  per_channel(options_.std.values, channels, "images.Normalize", "std");
}

[[maybe_unused]] static const bool registered_to_float =
    Registry<ImageTransform>::add<ToFloat>("ToFloat", "Converts bytes to float32 from 0 to 1.");
[[maybe_unused]] static const bool registered_normalize = Registry<ImageTransform>::add<Normalize>(
    "Normalize", "Converts bytes to float32, subtracts the mean and divides by the standard deviation.");

}  // namespace fulgur::images
