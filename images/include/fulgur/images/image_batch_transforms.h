#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "fulgur/core/contracts/batch_transforms.h"
#include "fulgur/core/contracts/dataset.h"
#include "fulgur/images/batch_image_transform.h"
#include "fulgur/images/image_pipeline.h"

namespace fulgur::images {

/// A list of transforms that run on whole batches, at once and on any device. Thread-safe, as the transforms are. An
/// ImageDataset with `device_transforms` writes what they draw into the entry `image.parameters` of its samples, and
/// `DataModule::batch_transforms` returns this object, so that a run applies it.
class FULGUR_API ImageBatchTransforms : public BatchTransforms {
 public:
  /// The entry with the drawn numbers, float32 (N, parameter_count()).
  static constexpr std::string_view kParameters = "image.parameters";

  /// Throws a ConfigError that names a transform that cannot run on batches of any images.
  static void check_kinds(const ImagePipeline::Transforms& transforms);
  /// `channels` and `size` are those of the images in the batch; `first_place` is the number of transforms on workers.
  /// Throws a ConfigError that names a transform that cannot run on batches.
  ImageBatchTransforms(ImagePipeline::Transforms transforms, int64_t channels, ImageSize size, size_t first_place);
  /// How many numbers a sample needs.
  int64_t parameter_count() const { return parameter_count_; }
  /// The size of the images before all transforms, and after them.
  ImageSize input_size() const { return size_; }
  ImageSize output_size() const { return output_size_; }
  bool empty() const { return steps_.empty(); }
  /// Draws the `parameter_count()` numbers of sample `index` into `row`. Depends on seed, epoch and index alone.
  void draw(const SampleContext& context, int64_t index, float* row) const;
  /// Returns the transformed images for (N, C, H, W) and parameters (N, parameter_count()) on the same device.
  Tensor apply(Tensor images, const Tensor& parameters) const;
  /// `kParameters`; empty if nothing is drawn, since batches have no such entry then.
  std::string_view parameters_entry() const override;
  /// Transforms the entry `image` with the entry `kParameters`, and removes the latter. Does not wait for the device.
  Batch apply(Batch batch) const override;

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
