#include "fulgur/images/image_transform.h"

#include "fulgur/core/text/errors.h"
#include "fulgur/images/batch_image_transform.h"

namespace fulgur {

ImageTransform::~ImageTransform() = default;
std::optional<ImageSize> ImageTransform::enough(ImageSize, SplitMix64) const { return std::nullopt; }

Tensor ImageTransform::apply_to_mask(const Tensor&, SplitMix64&) const {
  throw ConfigError(
      "[images.ImageTransform] a transform of images with masks must say what happens to the mask; this one does not. "
      "Instead of RandAugment and TrivialAugmentWide, use RandomAffine, ColorJitter and others; in a transform of your "
      "own, override apply_to_mask.");
}

namespace images {

BatchImageTransform::~BatchImageTransform() = default;
ImageSize BatchImageTransform::size_after(ImageSize size) const { return size; }
void BatchImageTransform::check_batch(ImageSize, int64_t) const {}

}  // namespace images
}  // namespace fulgur
