#include "batch_ops.h"
#include "drawing.h"
#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/options/checked_options.h"
#include "fulgur/images/geometry_transforms.h"

namespace fulgur::images {

void RandomHorizontalFlip::Options::fields(Fields& f) {
  f(p, "p", "Probability that an image is flipped.").range(0, 1);
}
void RandomVerticalFlip::Options::fields(Fields& f) { f(p, "p", "Probability that an image is flipped.").range(0, 1); }

RandomHorizontalFlip::RandomHorizontalFlip(const Options& options)
    : options_(detail::checked_options(options, "images.RandomHorizontalFlip")) {}
RandomVerticalFlip::RandomVerticalFlip(const Options& options)
    : options_(detail::checked_options(options, "images.RandomVerticalFlip")) {}

void RandomHorizontalFlip::draw(ImageSize, SplitMix64& random, float* row) const {
  row[0] = happens(random, options_.p) ? 1.0F : 0.0F;
}
void RandomVerticalFlip::draw(ImageSize, SplitMix64& random, float* row) const {
  row[0] = happens(random, options_.p) ? 1.0F : 0.0F;
}

Tensor RandomHorizontalFlip::apply(const Tensor& image, SplitMix64& random) const {
  return happens(random, options_.p) ? horizontal_flip(image) : image;
}
Tensor RandomVerticalFlip::apply(const Tensor& image, SplitMix64& random) const {
  return happens(random, options_.p) ? vertical_flip(image) : image;
}

Tensor RandomHorizontalFlip::apply_to_mask(const Tensor& mask, SplitMix64& random) const { return apply(mask, random); }
Tensor RandomVerticalFlip::apply_to_mask(const Tensor& mask, SplitMix64& random) const { return apply(mask, random); }

Tensor RandomHorizontalFlip::apply_batch(const Tensor& images, const Tensor& parameters) const {
  return batch_flip(images, parameters, 3);
}
Tensor RandomVerticalFlip::apply_batch(const Tensor& images, const Tensor& parameters) const {
  return batch_flip(images, parameters, 2);
}

[[maybe_unused]] static const bool registered_horizontal_flip = Registry<ImageTransform>::add<RandomHorizontalFlip>(
    "RandomHorizontalFlip", "Mirrors left and right with a probability.");
[[maybe_unused]] static const bool registered_vertical_flip = Registry<ImageTransform>::add<RandomVerticalFlip>(
    "RandomVerticalFlip", "Mirrors top and bottom with a probability.");

}  // namespace fulgur::images
