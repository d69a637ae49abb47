#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "fulgur/core/contracts/dataset.h"
#include "fulgur/images/batch_image_transform.h"

/// Transforms on the device, of a whole batch at once. A data module uses them with two calls:
///
///     // In the data set, whose prototype has the entry "image.parameters", float32 (1, parameter_count()):
///     transforms.draw(context, index, row);  // `row`: the sample's row of that entry
///
///     Batch on_after_batch_transfer(LightningModule& module, Batch batch, int64_t loader_idx) override {
///       batch = DataModule::on_after_batch_transfer(module, std::move(batch), loader_idx);
///       return transforms.apply(std::move(batch));
///     }
///
/// `apply` removes "image.parameters", so the module sees the same entries as with transforms on workers. If
/// `parameter_count()` is 0, the data set adds no such entry.
namespace fulgur::images {

/// The random numbers of transform `place` of sample `index`. Transforms on workers have the places 0, 1, …; those on
/// the device the places after them. So a transform draws the same numbers in both, and the numbers do not depend on
/// how many of them the other transforms draw.
FULGUR_API SplitMix64 transform_random(const SampleContext& context, int64_t index, size_t place);

/// A list of transforms that run on batches. Thread-safe, as the transforms are.
class FULGUR_API ImageBatchTransforms {
 public:
  /// `channels` and `size` are those of the images in the batch; `first_place` is the number of transforms on workers.
  /// Throws a ConfigError that names a transform that cannot run on batches.
  ImageBatchTransforms(std::vector<std::shared_ptr<const ImageTransform>> transforms, int64_t channels, ImageSize size,
                       size_t first_place);
  /// How many numbers a sample needs.
  int64_t parameter_count() const { return parameter_count_; }
  /// The size of the images after all transforms.
  ImageSize output_size() const { return output_size_; }
  bool empty() const { return steps_.empty(); }
  /// Draws the `parameter_count()` numbers of sample `index` into `row`. Depends on seed, epoch and index alone.
  void draw(const SampleContext& context, int64_t index, float* row) const;
  /// Returns the transformed images for (N, C, H, W) and parameters (N, parameter_count()) on the same device.
  Tensor apply(Tensor images, const Tensor& parameters) const;
  /// Transforms the entry `image` with the entry `image` + ".parameters", and removes the latter. Does not wait for the
  /// device.
  Batch apply(Batch batch, std::string_view image = "image") const;

 private:
  struct Step {
    std::shared_ptr<const ImageTransform> owner;
    const BatchImageTransform* transform;
    ImageSize size;  // of its input
    int64_t first;   // of its parameters
  };
  std::vector<Step> steps_;
  int64_t channels_;
  ImageSize size_, output_size_;
  size_t first_place_;
  int64_t parameter_count_ = 0;
};

}  // namespace fulgur::images
