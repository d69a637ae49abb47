#pragma once

#include "fulgur/images/image_transform.h"

namespace fulgur::images {

/// A second interface of an ImageTransform that can also run on a whole batch on any device. What is random is drawn on
/// the host when the sample is read, as a row of numbers, so it does not depend on the batch or the device. On the CPU,
/// `apply_batch` gives what `apply` gives for each sample with the same random numbers.
class FULGUR_API BatchImageTransform {
 public:
  virtual ~BatchImageTransform();
  /// How many numbers a sample needs; 0 if nothing is random.
  virtual int64_t parameter_count() const = 0;
  /// Draws the numbers for an image of `size` into `row`. Thread-safe.
  virtual void draw(ImageSize size, SplitMix64& random, float* row) const = 0;
  /// Returns the transformed images. `images` is (N, C, H, W), uint8 or float32, and must not be changed; `parameters`
  /// is (N, parameter_count()), float32, on the same device. Must not wait for the device.
  virtual Tensor apply_batch(const Tensor& images, const Tensor& parameters) const = 0;
  /// The size of the result for images of `size`.
  virtual ImageSize size_after(ImageSize size) const;
  /// Throws a ConfigError if, with its options, the transform cannot run on batches of such images.
  virtual void check_batch(ImageSize size, int64_t channels) const;
};

}  // namespace fulgur::images
