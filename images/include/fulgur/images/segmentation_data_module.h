#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/core/contracts/data_module.h"
#include "fulgur/core/contracts/registry.h"
#include "fulgur/data/loading_options.h"
#include "fulgur/data/splits.h"
#include "fulgur/images/image_transform.h"

namespace fulgur {

/// Images and their masks, for segmentation: a folder of images, and a folder with a PNG for each of them whose path is
/// the same but for the suffix. Batches have `image` (N, C, H, W), uint8 or, after a transform that makes it so,
/// float32; `mask` (N, H, W) int64, the class of each pixel, -100 for pixels that have none; for predict also `file`
/// (texts), with `file_names`, and no `mask` if the images have none.
///
/// Transforms that move pixels move those of the mask likewise, by the nearest pixel (`ImageTransform::apply_to_mask`).
/// Pixels that they add from outside of the image are -100. All images need one size after them.
///
/// Exported values: `num_classes`, `classes` (a list of names, if they are given), and `channels`, `height` and `width`
/// of the first sample after the transforms.
class FULGUR_API SegmentationFolderDataModule : public DataModule {
 public:
  struct FULGUR_API Options {
    std::filesystem::path train_images = {}, train_masks = {};
    std::optional<std::filesystem::path> val_images = {}, val_masks = {};
    std::optional<std::filesystem::path> test_images = {}, test_masks = {};
    std::optional<std::filesystem::path> predict_images = {};
    std::string mask_suffix = {};
    int64_t num_classes = 0;
    std::vector<std::string> classes = {};
    std::vector<int64_t> mask_values = {};
    std::vector<int64_t> ignored_values = {255};
    SplitOptions split = {.val_fraction = 0.1, .test_fraction = 0};
    int64_t channels = 3;
    bool exif_orientation = true;
    int64_t max_pixels = 100'000'000;
    std::vector<Spec<ImageTransform>> transforms = {}, eval_transforms = {};
    int64_t batch_size = 16;
    Auto<int64_t> eval_batch_size = {};
    bool shuffle = true;
    bool drop_last = false;
    bool file_names = true;
    LoadingOptions loading = {};
    void fields(Fields& f);
  };
  /// Throws a ConfigError for options that contradict each other.
  explicit SegmentationFolderDataModule(const Options& options);
  ~SegmentationFolderDataModule() override;

  /// Lists the files that `fn` needs. Throws a DataError for images without a mask, which it names, and for a fit whose
  /// training masks have pixels of fewer than two classes: it reads them until it has found two.
  void setup(TrainerFn fn) override;
  std::vector<std::shared_ptr<Loader>> loaders(RunningStage stage) override;
  StateTree exported_values() const override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fulgur
