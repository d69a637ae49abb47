#include <utility>

#include "fulgur/core/options/checked_options.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/images/image_data_modules.h"
#include "fulgur/images/image_folder.h"
#include "fulgur/images/labelled_images.h"
#include "modules/listed_sets.h"

namespace fulgur {
namespace {

std::unique_ptr<detail::ImageSets> folder_sets(const ImageFolderDataModule::Options& given) {
  const auto options = detail::checked_options(given, "images.ImageFolderDataModule");
  ImageFolderOptions which{.suffixes = options.suffixes, .allow_empty = options.allow_empty, .classes = {}};
  detail::ImageLister lister{
      .train = options.train_dir,
      .val = options.val_dir,
      .test = options.test_dir,
      .predict = options.predict_dir,
      .suffix = "dir",
      .classes = [root = options.train_dir] { return image_folder_classes(root); },
      .labelled =
          [which](const std::filesystem::path& root, const std::vector<std::string>& classes) {
            ImageFolderOptions with_classes = which;
            with_classes.classes = classes;
            return list_image_folder(root, with_classes);
          },
      .unlabelled = [which](const std::filesystem::path& root) { return list_images(root, which); }};
  return detail::listed_sets("ImageFolderDataModule", std::move(lister), options.split, options.reading);
}

std::unique_ptr<detail::ImageSets> labelled_sets(const LabelledImagesDataModule::Options& given) {
  const auto options = detail::checked_options(given, "images.LabelledImagesDataModule");
  LabelledImagesOptions how{.root = options.root.value_or(std::filesystem::path()),
                            .file_column = options.file_column,
                            .label_column = options.label_column,
                            .labels = true,
                            .classes = {}};
  detail::ImageLister lister{
      .train = options.train_file,
      .val = options.val_file,
      .test = options.test_file,
      .predict = options.predict_file,
      .suffix = "file",
      .classes = [how, file = options.train_file] { return read_labelled_images(file, how).classes; },
      .labelled =
          [how](const std::filesystem::path& file, const std::vector<std::string>& classes) {
            LabelledImagesOptions with_classes = how;
            with_classes.classes = classes;
            return read_labelled_images(file, with_classes);
          },
      .unlabelled =
          [how](const std::filesystem::path& file) {
            LabelledImagesOptions unlabelled = how;
            unlabelled.labels = false;
            return read_labelled_images(file, unlabelled);
          }};
  return detail::listed_sets("LabelledImagesDataModule", std::move(lister), options.split, options.reading);
}

}  // namespace

void ImageSplitOptions::fields(Fields& f) {
  f(val_fraction, "val_fraction",
    "Fraction of the training data for validation, of each class; auto: 0.1, or 0 if validation has its own data.")
      .at_least(0)
      .less_than(1);
  f(test_fraction, "test_fraction", "Fraction of the training data for test and predict, of each class.")
      .at_least(0)
      .less_than(1);
  f(split_seed, "split_seed", "Which images the fractions are; independent of the run's seed.");
}

void ImageFolderDataModule::Options::fields(Fields& f) {
  f(train_dir, "train_dir", "Folder with a folder for each class.").required();
  f(val_dir, "val_dir", "Such a folder for validation; null: val_fraction of the training images.");
  f(test_dir, "test_dir", "Such a folder for test and predict; null: test_fraction of the training images.");
  f(predict_dir, "predict_dir", "Folder with images for predict, without classes; null: those of test.");
  split.fields(f);
  f(suffixes, "suffixes", "Files with other suffixes are ignored.").min_items(1);
  f(allow_empty, "allow_empty", "Whether classes may have no images.");
  reading.fields(f);
  batches.fields(f);
}

ImageFolderDataModule::ImageFolderDataModule(const Options& options)
    : ImageDataModule("ImageFolderDataModule", options.batches, folder_sets(options)) {}

void LabelledImagesDataModule::Options::fields(Fields& f) {
  f(train_file, "train_file", "CSV or JSONL file with paths and labels of the training images.").required();
  f(val_file, "val_file", "Such a file for validation; null: val_fraction of the training images.");
  f(test_file, "test_file", "Such a file for test and predict; null: test_fraction of the training images.");
  f(predict_file, "predict_file", "Such a file for predict, whose labels are not read; null: the images of test.");
  f(root, "root", "Folder of relative paths; null: that of the file which has them.");
  f(file_column, "file_column", "Column or key with the paths.");
  f(label_column, "label_column", "Column or key with the labels: names, or integers from 0.");
  split.fields(f);
  reading.fields(f);
  batches.fields(f);
}

LabelledImagesDataModule::LabelledImagesDataModule(const Options& options)
    : ImageDataModule("LabelledImagesDataModule", options.batches, labelled_sets(options)) {}

[[maybe_unused]] static const bool registered_image_folder = Registry<DataModule>::add<ImageFolderDataModule>(
    "ImageFolderDataModule", "JPEG, PNG and WebP files in folders, one per class.");
[[maybe_unused]] static const bool registered_labelled_images = Registry<DataModule>::add<LabelledImagesDataModule>(
    "LabelledImagesDataModule", "JPEG, PNG and WebP files that CSV or JSONL files name, with their labels.");

}  // namespace fulgur
