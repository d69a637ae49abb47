#include "fulgur/images/image_transform.h"

#include "fulgur/images/batch_image_transform.h"

namespace fulgur {

ImageTransform::~ImageTransform() = default;
std::optional<ImageSize> ImageTransform::enough(ImageSize, SplitMix64) const { return std::nullopt; }

namespace images {

BatchImageTransform::~BatchImageTransform() = default;
ImageSize BatchImageTransform::size_after(ImageSize size) const { return size; }
void BatchImageTransform::check_batch(ImageSize, int64_t) const {}

}  // namespace images
}  // namespace fulgur
