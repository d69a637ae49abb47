#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "fulgur/core/contracts/dataset.h"
#include "fulgur/images/image_transform.h"

namespace fulgur {

namespace images {
/// The random numbers of the transform at `place` of sample `index`. Transforms on workers have the places 0, 1, …;
/// those on the device the places after them. So a transform draws the same numbers in both, and they do not depend on
/// how many numbers the other transforms draw.
FULGUR_API SplitMix64 transform_random(const SampleContext& context, int64_t index, size_t place);
}  // namespace images

/// Transforms that are applied one after the other. Thread-safe.
///
/// Transform k of a sample draws from `images::transform_random(context, index, k)`. So a sample is the same for any
/// number of workers and ranks, and a transform that is appended to the list does not change the numbers of those
/// before it. If the list is empty, or no transform makes float32, images stay uint8.
class FULGUR_API ImagePipeline {
 public:
  using Transforms = std::vector<std::shared_ptr<const ImageTransform>>;

  ImagePipeline() = default;
  /// Throws a ConfigError if a transform is null.
  explicit ImagePipeline(Transforms transforms);

  bool empty() const { return transforms_.empty(); }
  size_t size() const { return transforms_.size(); }
  /// The transformed image of sample `index`. `image` is (C, H, W) uint8 and is not changed; without transforms it is
  /// returned itself. Throws what a transform throws, and an Error if one returns something other than (C, H, W) uint8
  /// or float32.
  Tensor apply(Tensor image, const SampleContext& context, int64_t index) const;
  /// The mask (1, H, W) uint8 of that image, of the same size, moved likewise: `ImageTransform::apply_to_mask` of each
  /// transform, with the random numbers of the image.
  Tensor apply_to_mask(Tensor mask, const SampleContext& context, int64_t index) const;
  /// What `ImageTransform::enough` of the first transform says about this sample; nullopt without transforms.
  std::optional<ImageSize> enough(ImageSize size, const SampleContext& context, int64_t index) const;

 private:
  Transforms transforms_;
};

}  // namespace fulgur
