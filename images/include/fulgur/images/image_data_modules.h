#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/images/image_data_module.h"

namespace fulgur {

/// Parts of the training data that are used for validation and test, if those have no data of their own. Each class has
/// its share in each part.
struct FULGUR_API ImageSplitOptions {
  Auto<double> val_fraction = {};
  double test_fraction = 0;
  int64_t split_seed = 0;

  void fields(Fields& f);
};

/// Images in folders, one per class (`list_image_folder`).
class FULGUR_API ImageFolderDataModule : public ImageDataModule {
 public:
  struct Options {
    std::filesystem::path train_dir = {};
    std::optional<std::filesystem::path> val_dir = {}, test_dir = {}, predict_dir = {};
    ImageSplitOptions split = {};
    std::vector<std::string> suffixes = {"jpg", "jpeg", "png", "webp"};
    bool allow_empty = false;
    ImageReadingOptions reading = {};
    ImageBatchOptions batches = {};
    void fields(Fields& f);
  };
  /// Throws a ConfigError for options that contradict each other.
  explicit ImageFolderDataModule(const Options& options);
};

/// Images that CSV or JSONL files name (`read_labelled_images`).
class FULGUR_API LabelledImagesDataModule : public ImageDataModule {
 public:
  struct Options {
    std::filesystem::path train_file = {};
    std::optional<std::filesystem::path> val_file = {}, test_file = {}, predict_file = {};
    std::optional<std::filesystem::path> root = {};
    std::string file_column = "file";
    std::string label_column = "label";
    ImageSplitOptions split = {};
    ImageReadingOptions reading = {};
    ImageBatchOptions batches = {};
    void fields(Fields& f);
  };
  /// Throws a ConfigError for options that contradict each other.
  explicit LabelledImagesDataModule(const Options& options);
};

/// Options of CIFAR's data modules.
struct FULGUR_API CifarOptions {
  std::filesystem::path data_dir = {};
  int64_t val_size = 5000;
  int64_t split_seed = 0;
  ImageBatchOptions batches = {};
  void fields(Fields& f);
};

/// CIFAR-10's binary version: `data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin`, in memory as uint8.
/// `val_size` training images, with the same number of each class, are for validation.
class FULGUR_API Cifar10DataModule : public ImageDataModule {
 public:
  using Options = CifarOptions;
  explicit Cifar10DataModule(const Options& options);
};

/// CIFAR-100's binary version: `train.bin`, `test.bin` and the names of the classes, `fine_label_names.txt` and
/// `coarse_label_names.txt`.
class FULGUR_API Cifar100DataModule : public ImageDataModule {
 public:
  enum class Labels { fine, coarse };
  friend constexpr auto enum_names(Labels) {
    return std::to_array<EnumName<Labels>>({{Labels::fine, "fine"}, {Labels::coarse, "coarse"}});
  }
  struct Options : CifarOptions {
    Labels labels = Labels::fine;
    void fields(Fields& f);
  };
  explicit Cifar100DataModule(const Options& options);
};

}  // namespace fulgur
