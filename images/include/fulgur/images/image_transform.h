#pragma once

#include <cstdint>
#include <optional>

#include "fulgur/core/state/split_mix.h"
#include "fulgur/core/state/tensor.h"

namespace fulgur {

/// Height and width in pixels.
struct ImageSize {
  int64_t height = 0;
  int64_t width = 0;
  friend bool operator==(const ImageSize&, const ImageSize&) = default;
};

/// One step between a decoded image and its row of a batch. Transforms are shared by all worker threads: `apply` must
/// be thread-safe, and its random numbers come from `random` alone, which belongs to this sample, this epoch and this
/// transform. So a sample is the same for any number of workers and ranks.
class FULGUR_API ImageTransform {
 public:
  static constexpr const char* kRegistryKind = "image_transform";

  virtual ~ImageTransform();
  /// Returns the transformed image. `image` is (C, H, W), uint8 or (after ToFloat or Normalize) float32, and must not
  /// be changed: it may be in a cache. Throws a DataError for an image that the transform cannot take.
  virtual Tensor apply(const Tensor& image, SplitMix64& random) const = 0;
  /// The mask of an image, moved as `apply` moves the image: `random` yields the same numbers. `mask` is (1, H, W)
  /// uint8 with the class of each pixel; pixels outside of the mask become `kIgnoredPixel`, and none gets a class
  /// between two others. A transform that moves no pixel returns `mask`. By default a ConfigError: the transform does
  /// not say what happens to masks.
  virtual Tensor apply_to_mask(const Tensor& mask, SplitMix64& random) const;
  /// The value of pixels of a mask that have no class.
  static constexpr uint8_t kIgnoredPixel = 255;
  /// The smallest size of the decoded image that is enough for the transforms from this one on, for an image of `size`
  /// in its file, so that a JPEG can be decoded at 1/2, 1/4 or 1/8; nullopt if the full size is needed. `random` yields
  /// the numbers that `apply` will draw. Only the first transform of a list is asked.
  virtual std::optional<ImageSize> enough(ImageSize size, SplitMix64 random) const;
};

}  // namespace fulgur
