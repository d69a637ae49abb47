#include "fulgur/images/segmentation_data_module.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <set>
#include <system_error>
#include <utility>

#include "fulgur/core/options/checked_options.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/data/data_loader.h"
#include "fulgur/data/sample_dataset.h"
#include "fulgur/images/decode_image.h"
#include "fulgur/images/image_folder.h"
#include "fulgur/images/image_pipeline.h"

namespace fulgur {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kNoClass = -100;
// Classes are bytes until the transforms are done; the last byte is that of a pixel without a class.
constexpr int64_t kMostMaskClasses = ImageTransform::kIgnoredPixel;
constexpr double kMostSegmentationBatch = 1e6;

/// Images and, if they have some, their masks.
struct ImagePairs {
  std::vector<fs::path> images, masks;
};

/// The class of each value of a mask's file: -1 if it has none, which is an error.
using ClassesOfValues = std::array<int16_t, 256>;

ClassesOfValues classes_of_values(const SegmentationFolderDataModule::Options& options) {
  ClassesOfValues classes;
  classes.fill(-1);
  for (const int64_t value : options.ignored_values)
    classes[static_cast<size_t>(value)] = ImageTransform::kIgnoredPixel;
  for (int64_t k = 0; k < options.num_classes; ++k) {
    const int64_t value = options.mask_values.empty() ? k : options.mask_values[static_cast<size_t>(k)];
    classes[static_cast<size_t>(value)] = static_cast<int16_t>(k);
  }
  return classes;
}

class SegmentationImages final : public SampleDataset {
 public:
  SegmentationImages(ImagePairs pairs, const ImagePipeline& pipeline, const DecodeOptions& decode,
                     const ClassesOfValues& classes, RunningStage stage, bool with_file)
      : pairs_(std::move(pairs)),
        pipeline_(pipeline),
        decode_(decode),
        classes_(classes),
        stage_(stage),
        with_file_(with_file) {
    decode_mask_ = decode_;
    decode_mask_.channels = 1;
    decode_mask_.stored_values = true;
  }

  int64_t size() const override { return static_cast<int64_t>(pairs_.images.size()); }

  Sample get(int64_t index, const SampleContext& context) const override {
    const auto place = static_cast<size_t>(index);
    const fs::path& file = pairs_.images.at(place);
    const Tensor image = decode_image(file, decode_);
    Sample sample{{"image", pipeline_.apply(image, context, index)}};
    if (!pairs_.masks.empty()) sample.add({"mask", mask_of(place, image, context)});
    if (with_file_) sample.add({"file", file.string()});
    return sample;
  }

 protected:
  std::string advice_for_shape(int64_t index) const override {
    return cat("The file is ", escape_controls(pairs_.images.at(static_cast<size_t>(index)).string()),
               ". All images need one size after the transforms: add Resize with height and width ({size: [H, W]}), "
               "CenterCrop or RandomResizedCrop to ",
               stage_ == RunningStage::train ? "transforms" : "eval_transforms", ".");
  }

 private:
  Tensor mask_of(size_t place, const Tensor& image, const SampleContext& context) const {
    const fs::path& file = pairs_.masks[place];
    const Tensor mask = decode_image(file, decode_mask_);
    if (mask.sizes().slice(1) != image.sizes().slice(1))
      throw DataError(cat("[images.SegmentationFolderDataModule] a mask must have the size of its image; ",
                          escape_controls(file.string()), " has ", mask.size(1), " x ", mask.size(2), ", the image ",
                          image.size(1), " x ", image.size(2), " (height x width).",
                          decode_.exif_orientation && mask.size(1) == image.size(2) && mask.size(2) == image.size(1)
                              ? " If the image is turned by its EXIF orientation, and the mask was made from pixels "
                                "that were not, set exif_orientation to false."
                              : ""));
    const Tensor classes = at::empty(mask.sizes(), at::kByte);
    const auto* const values = mask.const_data_ptr<uint8_t>();
    auto* const out = classes.mutable_data_ptr<uint8_t>();
    for (int64_t i = 0; i < mask.numel(); ++i) {
      const int16_t number = classes_[values[i]];
      if (number < 0) refuse_value(file, values[i]);
      out[i] = static_cast<uint8_t>(number);
    }
    const Tensor moved = pipeline_.apply_to_mask(classes, context, static_cast<int64_t>(place)).squeeze(0);
    return moved.to(at::kLong).masked_fill_(moved.eq(ImageTransform::kIgnoredPixel), kNoClass);
  }

  [[noreturn]] void refuse_value(const fs::path& file, int value) const {
    std::vector<std::string> known;
    for (size_t i = 0; i < classes_.size(); ++i)
      if (classes_[i] >= 0) known.push_back(std::to_string(i));
    throw DataError(
        cat("[images.SegmentationFolderDataModule] a pixel of a mask must have a value with a class, or one "
            "that is ignored (",
            join_some(known, 10), "); ", escape_controls(file.string()), " has the value ", value,
            ". Set num_classes, mask_values or ignored_values to match the masks."));
  }

  ImagePairs pairs_;
  ImagePipeline pipeline_;
  DecodeOptions decode_, decode_mask_;
  ClassesOfValues classes_;
  RunningStage stage_;
  bool with_file_;
};

/// The images in a folder and those below it, with the mask that each has in `masks`.
ImagePairs list_pairs(const fs::path& images, const std::optional<fs::path>& masks, const std::string& suffix) {
  const ImageList list = list_images(images);
  ImagePairs pairs;
  std::vector<std::string> missing;
  std::map<fs::path, fs::path> image_of;
  for (int64_t i = 0; i < list.size(); ++i) {
    pairs.images.push_back(list.path(i));
    if (!masks) continue;
    fs::path mask = *masks / fs::path(list.files[static_cast<size_t>(i)]);
    mask.replace_filename(mask.stem().string() + suffix + ".png");
    if (const auto [other, is_new] = image_of.emplace(mask, pairs.images.back()); !is_new)
      throw DataError(cat("[images.SegmentationFolderDataModule] each image must have a mask to itself; ",
                          escape_controls(other->second.string()), " and ",
                          escape_controls(pairs.images.back().string()), " would both have ",
                          escape_controls(mask.string()), ". Rename or remove one of them."));
    std::error_code none;
    if (!fs::exists(mask, none)) missing.push_back(mask.string());
    pairs.masks.push_back(std::move(mask));
  }
  if (!missing.empty())
    throw DataError(cat("[images.SegmentationFolderDataModule] each image must have a mask, a PNG of the same path; ",
                        missing.size(), " of ", counted(list.size(), "image"), " in ", escape_controls(images.string()),
                        " have none: ", escape_controls(join_some(missing, 5)),
                        ". If the names of masks have an ending, set mask_suffix."));
  return pairs;
}

/// The values of pixels in all masks, until pixels of two classes have been found or a file cannot be used, which the
/// first batch reports: nullopt. Usually the first mask suffices. Files are taken from all parts of the list, since
/// folders may be sorted by what they show.
std::optional<std::set<int>> values_of_one_class(const std::vector<fs::path>& masks, const ClassesOfValues& classes,
                                                 const DecodeOptions& decode) {
  constexpr double kGoldenRatio = 0.618;
  const size_t count = masks.size();
  size_t stride = std::max<size_t>(1, static_cast<size_t>(static_cast<double>(count) * kGoldenRatio));
  while (std::gcd(stride, count) != 1) ++stride;
  std::set<int> values;
  int16_t first = ImageTransform::kIgnoredPixel;
  for (size_t i = 0; i < count; ++i) {
    std::array<bool, 256> seen{};
    try {
      const Tensor mask = decode_image(masks[i * stride % count], decode);
      const auto* const pixels = mask.const_data_ptr<uint8_t>();
      for (int64_t pixel = 0; pixel < mask.numel(); ++pixel) seen[pixels[pixel]] = true;
    } catch (const DataError&) {
      return std::nullopt;
    }
    for (size_t value = 0; value < seen.size(); ++value) {
      if (!seen[value]) continue;
      const int16_t number = classes[value];
      const bool is_second = first != ImageTransform::kIgnoredPixel && number != ImageTransform::kIgnoredPixel;
      if (number < 0 || (is_second && number != first)) return std::nullopt;
      if (number != ImageTransform::kIgnoredPixel) first = number;
      values.insert(static_cast<int>(value));
    }
  }
  return values;
}

/// Masks of one class teach nothing, and every metric of them is perfect: the values of the others are usually ignored
/// by mistake, such as 255 in binary masks.
void check_several_classes(const std::vector<fs::path>& masks, const ClassesOfValues& classes,
                           const SegmentationFolderDataModule::Options& options) {
  DecodeOptions decode;
  decode.channels = 1;
  decode.stored_values = true;
  decode.exif_orientation = options.exif_orientation;
  decode.max_pixels = options.max_pixels;
  const std::optional<std::set<int>> values = values_of_one_class(masks, classes, decode);
  if (!values) return;
  std::vector<std::string> of_class, ignored;
  for (const int value : *values)
    (classes[static_cast<size_t>(value)] == ImageTransform::kIgnoredPixel ? ignored : of_class)
        .push_back(std::to_string(value));
  std::string found = of_class.empty() ? std::string() : cat("the value ", of_class.front());
  if (!ignored.empty())
    found += cat(found.empty() ? "" : " and ", "ignored pixels (values ", join_some(ignored, 10), ")");
  throw DataError(
      cat("[images.SegmentationFolderDataModule] the training masks must have pixels of at least two "
          "classes; those in ",
          escape_controls(options.train_masks.string()), " have only ", found,
          ". Set mask_values to the value of each class; for masks of 0 and 255 it is [0, 255]."));
}

ImagePairs chosen_pairs(const ImagePairs& all, const std::vector<int64_t>& indices) {
  ImagePairs chosen;
  for (const int64_t index : indices) {
    chosen.images.push_back(all.images[static_cast<size_t>(index)]);
    chosen.masks.push_back(all.masks[static_cast<size_t>(index)]);
  }
  return chosen;
}

ImagePipeline pipeline_of(const std::vector<Spec<ImageTransform>>& specs) {
  ImagePipeline::Transforms transforms;
  for (const Spec<ImageTransform>& spec : specs) {
    transforms.push_back(spec.create());
    try {
      SplitMix64 random(0);
      (void)transforms.back()->apply_to_mask(at::zeros({1, 8, 8}, at::kByte), random);
    } catch (const ConfigError& error) {
      throw ConfigError(cat(error.what(), " It is ", spec.class_path(), "."));
    } catch (const DataError&) {  // the mask is too small
    }
  }
  return ImagePipeline(std::move(transforms));
}

}  // namespace

struct SegmentationFolderDataModule::Impl {
  Options options;
  ImagePipeline for_training, for_evaluation;
  ClassesOfValues classes{};
  std::optional<ImagePairs> all;  ///< of the training folders
  std::array<std::vector<int64_t>, 3> parts;
  std::map<RunningStage, std::shared_ptr<const Dataset>> datasets;  ///< null: no data
  mutable std::optional<std::array<int64_t, 3>> shape;              ///< of an image, when it is known

  /// A part of the training images; nullopt if it is empty.
  std::optional<ImagePairs> part(size_t which) {
    if (!all) {
      ImagePairs listed = list_pairs(options.train_images, options.train_masks, options.mask_suffix);
      SplitOptions split = options.split;
      if (options.val_images) split.val_fraction = 0;
      if (options.test_images) split.test_fraction = 0;
      parts = split.parts(static_cast<int64_t>(listed.images.size()), nullptr, "images.SegmentationFolderDataModule");
      all = std::move(listed);
    }
    if (parts[which].empty()) return std::nullopt;
    return chosen_pairs(*all, parts[which]);
  }

  std::optional<ImagePairs> pairs_of(RunningStage stage) {
    switch (stage) {
      case RunningStage::train:
        return part(0);
      case RunningStage::validate:
        if (options.val_images) return list_pairs(*options.val_images, options.val_masks, options.mask_suffix);
        return part(1);
      case RunningStage::predict:
        if (options.predict_images) return list_pairs(*options.predict_images, std::nullopt, options.mask_suffix);
        [[fallthrough]];
      case RunningStage::test:
        if (options.test_images) return list_pairs(*options.test_images, options.test_masks, options.mask_suffix);
        return part(2);
    }
    return std::nullopt;
  }

  std::shared_ptr<const Dataset> make_dataset(RunningStage stage) {
    std::optional<ImagePairs> pairs = pairs_of(stage);
    if (!pairs) return nullptr;
    if (stage == RunningStage::train) check_several_classes(pairs->masks, classes, options);
    DecodeOptions decode;
    decode.channels = options.channels;
    decode.exif_orientation = options.exif_orientation;
    decode.max_pixels = options.max_pixels;
    return std::make_shared<SegmentationImages>(std::move(*pairs),
                                                stage == RunningStage::train ? for_training : for_evaluation, decode,
                                                classes, stage, stage == RunningStage::predict && options.file_names);
  }
};

void SegmentationFolderDataModule::Options::fields(Fields& f) {
  f(train_images, "train_images", "Folder with the training images (JPEG, PNG, WebP), also in folders below it.")
      .required();
  f(train_masks, "train_masks",
    "Folder with their masks: PNG, grey or with a palette, of the same paths; the value of a pixel is its class.")
      .required();
  f(val_images, "val_images", "Images for validation; null: val_fraction of the training images.");
  f(val_masks, "val_masks", "Their masks.");
  f(test_images, "test_images", "Images for test and predict; null: test_fraction of the training images.");
  f(test_masks, "test_masks", "Their masks.");
  f(predict_images, "predict_images", "Images for predict, without masks; null: those of test.");
  f(mask_suffix, "mask_suffix", "What follows the name of an image in that of its mask, before .png, such as _mask.");
  f(num_classes, "num_classes", "Classes of pixels, the background included.").required().range(2, kMostMaskClasses);
  f(classes, "classes", "Their names; empty: none.");
  f(mask_values, "mask_values", "The value of each class in masks, such as [0, 255]; empty: class k has the value k.");
  f(ignored_values, "ignored_values",
    "Values of pixels that have no class: they count neither in losses nor in metrics. mask_values and classes "
    "precede.");
  split.fields(f);
  f(channels, "channels", "3: RGB; 1: grey. Images of the other kind are converted.").range(1, 3);
  f(exif_orientation, "exif_orientation", "Whether images are turned as their EXIF orientation says.");
  f(max_pixels, "max_pixels", "A file with more pixels is refused before memory is allocated.").range(1, 1e12);
  f(transforms, "transforms", "What happens to training images and their masks, in this order.");
  f(eval_transforms, "eval_transforms", "What happens to those of validation, test and predict, in this order.");
  f(batch_size, "batch_size", "Images in a training batch.").range(1, kMostSegmentationBatch);
  f(eval_batch_size, "eval_batch_size", "Images in a batch of validation, test and predict; auto: batch_size.")
      .range(1, kMostSegmentationBatch);
  f(shuffle, "shuffle", "Whether training reads the images in a new order in each epoch.");
  f(drop_last, "drop_last", "Whether an incomplete last batch of training is left out.");
  f(file_names, "file_names", "Whether batches of predict have the entry file, the paths.");
  loading.fields(f);
}

SegmentationFolderDataModule::SegmentationFolderDataModule(const Options& options) : impl_(std::make_unique<Impl>()) {
  impl_->options = detail::checked_options(options, "images.SegmentationFolderDataModule");
  const auto refuse = [](const auto&... what) {
    throw ConfigError(cat("[images.SegmentationFolderDataModule] ", what...));
  };
  options.split.check("images.SegmentationFolderDataModule");
  const auto count = static_cast<size_t>(options.num_classes);
  if (options.train_images.empty() || options.train_masks.empty())
    refuse("train_images and train_masks must name folders; one of them is empty.");
  if (options.val_images.has_value() != options.val_masks.has_value())
    refuse("val_images and val_masks must be given together.");
  if (options.test_images.has_value() != options.test_masks.has_value())
    refuse("test_images and test_masks must be given together.");
  if (!options.split.fold.empty() && options.val_images)
    refuse("fold divides the training images, but val_images names images for validation. Remove one of them.");
  if (options.channels == 2) refuse("channels must be 1 or 3; got 2.");
  if (!options.classes.empty() && options.classes.size() != count)
    refuse("classes must have a name for each of the ", count, " classes; it has ", options.classes.size(), ".");
  if (!options.mask_values.empty() && options.mask_values.size() != count)
    refuse("mask_values must have a value for each of the ", count, " classes; it has ", options.mask_values.size(),
           ".");
  for (const auto& [values, name] :
       {std::pair(&options.mask_values, "mask_values"), {&options.ignored_values, "ignored_values"}}) {
    if (std::ranges::any_of(*values, [](int64_t value) { return value < 0 || value > 255; }))
      refuse(name, " must be in [0, 255].");
    if (std::set<int64_t>(values->begin(), values->end()).size() != values->size())
      refuse(name, " must have each value once.");
  }
  impl_->classes = classes_of_values(impl_->options);
  impl_->for_training = pipeline_of(options.transforms);
  impl_->for_evaluation = pipeline_of(options.eval_transforms);
}

SegmentationFolderDataModule::~SegmentationFolderDataModule() = default;

void SegmentationFolderDataModule::setup(TrainerFn fn) {
  const auto make = [&](RunningStage stage) {
    if (!impl_->datasets.contains(stage)) impl_->datasets[stage] = impl_->make_dataset(stage);
  };
  if (fn == TrainerFn::fit) make(RunningStage::train);
  if (fn == TrainerFn::fit || fn == TrainerFn::validate) make(RunningStage::validate);
  if (fn == TrainerFn::test) make(RunningStage::test);
  if (fn == TrainerFn::predict) make(RunningStage::predict);
}

std::vector<std::shared_ptr<Loader>> SegmentationFolderDataModule::loaders(RunningStage stage) {
  const auto found = impl_->datasets.find(stage);
  if (found == impl_->datasets.end() || !found->second) return {};
  const Options& options = impl_->options;
  const bool training = stage == RunningStage::train;
  DataLoaderOptions how;
  how.batch_size = training ? options.batch_size : options.eval_batch_size.value.value_or(options.batch_size);
  how.shuffle = training && options.shuffle;
  how.drop_last = training && options.drop_last;
  how.name = stage == RunningStage::validate ? "validation" : std::string(name_of(stage));
  options.loading.apply(how);
  return {std::make_shared<DataLoader>(found->second, std::move(how))};
}

StateTree SegmentationFolderDataModule::exported_values() const {
  const Impl& m = *impl_;
  StateTree values = StateTree::map({{"num_classes", m.options.num_classes}});
  if (!m.options.classes.empty())
    values["classes"] = StateTree(StateTree::List(m.options.classes.begin(), m.options.classes.end()));
  for (const auto& [stage, dataset] : m.datasets) {
    if (m.shape || !dataset || dataset->size() == 0) continue;
    const Tensor image = dataset->prototype()["image"];
    m.shape = std::array<int64_t, 3>{image.size(1), image.size(2), image.size(3)};
  }
  if (!m.shape) return values;
  values["channels"] = (*m.shape)[0];
  values["height"] = (*m.shape)[1];
  values["width"] = (*m.shape)[2];
  return values;
}

[[maybe_unused]] static const bool registered_segmentation_folder =
    Registry<DataModule>::add<SegmentationFolderDataModule>(
        "SegmentationFolderDataModule", "Images in a folder and their masks, PNG files, in another, for segmentation.");

}  // namespace fulgur
