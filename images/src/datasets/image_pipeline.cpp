#include "fulgur/images/image_pipeline.h"

#include <utility>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {

SplitMix64 images::transform_random(const SampleContext& context, int64_t index, size_t place) {
  const uint64_t of_sample = context.random(index).next();
  return SplitMix64(mix_bits(of_sample + 0x9e3779b97f4a7c15u) ^ static_cast<uint64_t>(place));
}

ImagePipeline::ImagePipeline(Transforms transforms) : transforms_(std::move(transforms)) {
  for (size_t k = 0; k < transforms_.size(); ++k)
    if (!transforms_[k])
      throw ConfigError(cat("[images.ImagePipeline] each transform must be an object; number ", k, " is null."));
}

Tensor ImagePipeline::apply(Tensor image, const SampleContext& context, int64_t index) const {
  for (size_t k = 0; k < transforms_.size(); ++k) {
    SplitMix64 random = images::transform_random(context, index, k);
    image = transforms_[k]->apply(image, random);
    if (!image.defined() || image.dim() != 3 || !image.is_cpu() ||
        (image.scalar_type() != at::kByte && image.scalar_type() != at::kFloat))
      throw Error(cat("[images.ImagePipeline] a transform must return an image (C, H, W) uint8 or float32 on the CPU; ",
                      "number ", k, " returned ",
                      image.defined() ? cat(at::toString(image.scalar_type()), " ", shape_text(image.sizes()))
                                      : std::string("an undefined tensor"),
                      "."));
  }
  return image;
}

Tensor ImagePipeline::apply_to_mask(Tensor mask, const SampleContext& context, int64_t index) const {
  for (size_t k = 0; k < transforms_.size(); ++k) {
    SplitMix64 random = images::transform_random(context, index, k);
    mask = transforms_[k]->apply_to_mask(mask, random);
  }
  return mask;
}

std::optional<ImageSize> ImagePipeline::enough(ImageSize size, const SampleContext& context, int64_t index) const {
  if (transforms_.empty()) return std::nullopt;
  return transforms_.front()->enough(size, images::transform_random(context, index, 0));
}

}  // namespace fulgur
