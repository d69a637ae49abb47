#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fulgur/core/contracts/data_module.h"
#include "fulgur/core/contracts/registry.h"
#include "fulgur/data/loading_options.h"
#include "fulgur/images/image_dataset.h"

namespace fulgur {

namespace detail {
class ImageSets;
}

/// How image data modules make batches.
struct FULGUR_API ImageBatchOptions {
  int64_t batch_size = 64;
  Auto<int64_t> eval_batch_size = {};
  bool shuffle = true;
  bool drop_last = false;
  std::vector<Spec<ImageTransform>> transforms = {}, device_transforms = {};
  std::vector<Spec<ImageTransform>> eval_transforms = {}, eval_device_transforms = {};
  bool file_names = true;
  LoadingOptions loading = {};

  void fields(Fields& f);
};

/// How image data modules read files.
struct FULGUR_API ImageReadingOptions {
  int64_t channels = 3;
  bool exif_orientation = true;
  bool scaled_decode = true;
  int64_t max_pixels = 100'000'000;
  OnBadSample on_bad_sample = OnBadSample::raise;
  int64_t max_bad_samples = 100;
  double cache_gb = 0;

  void fields(Fields& f);
  ImageDatasetOptions dataset_options() const;
};

/// Base of the data modules for labelled images. Batches: `image` (N, C, H, W), uint8 or, after a transform that makes
/// it so, float32; `label` (N) int64; for predict also `file`, with `file_names`. With transforms on the device,
/// loaders yield the images before these, and `image.parameters` (N, K) float32 if they draw numbers; a run completes
/// the batch.
///
/// The names of the classes are saved in a checkpoint. A checkpoint cannot be evaluated or resumed with other classes
/// or another order of them. With `on_bad_sample: skip`, the bad files of validation, test and predict are left out:
/// they are found in `setup`, which decodes each file once.
class FULGUR_API ImageDataModule : public DataModule {
 public:
  ~ImageDataModule() override;

  /// Lists the files that `fn` needs, once. Throws a DataError as the functions that list them do, and a
  /// CheckpointError if the classes differ from those of a state that was loaded.
  void setup(TrainerFn fn) override;
  std::vector<std::shared_ptr<Loader>> loaders(RunningStage stage) override;
  /// `num_classes`, `classes` (a list of names); `channels`, `height`, `width`, `num_features` of the first sample,
  /// which is read for it, after all transforms.
  static constexpr const char* kExports =
      "num_classes, classes; channels, height, width, num_features if all images have one size";
  StateTree exported_values() const override;
  /// Those of `device_transforms` or `eval_device_transforms`; null if there are none, or no data for `stage`.
  const BatchTransforms* batch_transforms(RunningStage stage) const override;
  StateTree state() const override;
  /// Throws a CheckpointError if the classes of the state are not those of the data.
  void load_state(const StateTree& state) override;

  /// Names by label, after `setup`.
  const std::vector<std::string>& classes() const;

 protected:
  ImageDataModule(std::string name, const ImageBatchOptions& options, std::unique_ptr<detail::ImageSets> sets);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fulgur
