#include "fulgur/images/image_data_module.h"

#include <algorithm>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "fulgur/core/options/yaml_writer.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/data/data_loader.h"
#include "fulgur/data/subset_dataset.h"
#include "fulgur/images/image_batch_transforms.h"
#include "modules/image_sets.h"

namespace fulgur {
namespace {

// Above any practical use, so that sums and products cannot overflow.
constexpr double kMostImageBatch = 1e9;

/// What happens to the images of a stage.
struct StageTransforms {
  ImagePipeline on_workers;
  ImagePipeline::Transforms on_device;
};

StageTransforms stage_transforms(const std::vector<Spec<ImageTransform>>& on_workers,
                                 const std::vector<Spec<ImageTransform>>& on_device) {
  const auto made = [](const std::vector<Spec<ImageTransform>>& specs) {
    ImagePipeline::Transforms transforms;
    for (const Spec<ImageTransform>& spec : specs) transforms.push_back(spec.create());
    return transforms;
  };
  StageTransforms transforms{ImagePipeline(made(on_workers)), made(on_device)};
  // A config with a transform that cannot run there is refused before data are read.
  images::ImageBatchTransforms::check_kinds(transforms.on_device);
  return transforms;
}

// How the images are normalised: the options of each Normalize, in YAML.
std::vector<std::string> normalizations(const std::vector<Spec<ImageTransform>>& on_workers,
                                        const std::vector<Spec<ImageTransform>>& on_device) {
  std::vector<std::string> found;
  for (const auto* const transforms : {&on_workers, &on_device})
    for (const Spec<ImageTransform>& one : *transforms)
      if (one.class_path() == "Normalize") found.push_back(to_yaml(one.write()));
  return found;
}

void warn_if_normalized_differently(const ImageBatchOptions& options) {
  const auto training = normalizations(options.transforms, options.device_transforms),
             evaluation = normalizations(options.eval_transforms, options.eval_device_transforms);
  if (training == evaluation) return;
  std::string what = "training images and those of validation, test and predict are normalised with different numbers";
  if (evaluation.empty())
    what = "training images are normalised, but those of validation, test and predict are not";
  else if (training.empty())
    what = "images of validation, test and predict are normalised, but training images are not";
  log::warn("images.not_normalized",
            cat(what,
                ": transforms are only for training. Write the same Normalize in data.init_args.transforms and in "
                "data.init_args.eval_transforms"));
}

std::vector<RunningStage> stages_of(TrainerFn fn) {
  switch (fn) {
    case TrainerFn::fit:
      return {RunningStage::train, RunningStage::validate};
    case TrainerFn::validate:
      return {RunningStage::validate};
    case TrainerFn::test:
      return {RunningStage::test};
    case TrainerFn::predict:
      return {RunningStage::predict};
  }
  return {};
}

/// The first difference of two lists of classes.
std::string class_difference(const std::vector<std::string>& saved, const std::vector<std::string>& found) {
  const auto at = [](const std::vector<std::string>& list, size_t i) {
    return i < list.size() ? cat("'", escape_controls(list[i]), "'") : std::string("nothing");
  };
  const auto [a, b] = std::ranges::mismatch(saved, found);
  const auto i = static_cast<size_t>(a - saved.begin());
  return cat("class ", i, " is ", at(saved, i), " in the checkpoint and ", at(found, i), " in the data (",
             counted(static_cast<int64_t>(saved.size()), "name"), " and ",
             counted(static_cast<int64_t>(found.size()), "name"), ")");
}

}  // namespace

struct ImageDataModule::Impl {
  /// Of a sample after the transforms.
  struct Shape {
    int64_t channels, height, width;
  };

  std::string name;
  ImageBatchOptions options;
  std::unique_ptr<detail::ImageSets> sets;
  StageTransforms for_training, for_evaluation;
  std::vector<std::string> classes;  ///< of the data
  std::vector<std::string> loaded;   ///< of a checkpoint
  std::map<RunningStage, std::shared_ptr<const Dataset>> datasets;
  std::map<RunningStage, std::shared_ptr<const ImageDataset>> read_from;  ///< all samples, also bad ones
  mutable std::optional<Shape> shape;

  void check_classes(const std::vector<std::string>& saved, const std::vector<std::string>& found) const {
    if (saved == found) return;
    throw CheckpointError(cat("[images.", name, "] the data must have the classes of the checkpoint, in its order; ",
                              class_difference(saved, found),
                              ". Evaluate with the classes that the model was trained with."));
  }

  void find_classes() {
    if (!classes.empty()) return;
    auto found = sets->classes();
    if (!found && loaded.empty())
      throw DataError(cat("[images.", name,
                          "] the training data must exist, since they have the classes and no checkpoint with classes "
                          "was loaded; '",
                          escape_controls(sets->source_of_classes().string()), "' does not exist. Check the path."));
    if (found && !loaded.empty()) check_classes(loaded, *found);
    classes = found ? std::move(*found) : loaded;
  }

  int64_t threads() const {
    const int64_t cores = std::max<int64_t>(static_cast<int64_t>(std::thread::hardware_concurrency()), 1);
    return std::max<int64_t>(options.loading.num_workers.value.value_or(cores), 1);
  }

  std::shared_ptr<const Dataset> make_dataset(RunningStage stage) {
    const bool training = stage == RunningStage::train;
    ImageDatasetOptions how = sets->reading();
    const StageTransforms& transforms = training ? for_training : for_evaluation;
    how.pipeline = transforms.on_workers;
    how.transforms_option = training ? "data.init_args.transforms" : "data.init_args.eval_transforms";
    how.device_transforms = transforms.on_device;
    how.with_file = stage == RunningStage::predict && options.file_names;
    const std::shared_ptr<ImageDataset> dataset = sets->dataset(stage, classes, std::move(how));
    if (!dataset) return nullptr;
    dataset->batch_transforms();  // refuses images that the transforms on the device cannot take
    read_from[stage] = dataset;
    if (training) return dataset;
    // A replacement would be evaluated as if it were the bad sample.
    std::vector<int64_t> readable = dataset->readable_samples(threads());
    if (static_cast<int64_t>(readable.size()) == dataset->size()) return dataset;
    return std::make_shared<SubsetDataset>(dataset, std::move(readable));
  }

  const Shape* known_shape() const {
    if (shape) return &*shape;
    for (const auto& [stage, dataset] : datasets) {
      if (!dataset || dataset->size() == 0) continue;
      const Tensor image = dataset->prototype()["image"];
      ImageSize size{image.size(2), image.size(3)};
      if (const auto* const on_device = read_from.at(stage)->batch_transforms()) size = on_device->output_size();
      shape = Shape{image.size(1), size.height, size.width};
      return &*shape;
    }
    return nullptr;
  }
};

void ImageBatchOptions::fields(Fields& f) {
  f(batch_size, "batch_size", "Images in a training batch.").range(1, kMostImageBatch);
  f(eval_batch_size, "eval_batch_size", "Images in a batch of validation, test and predict; auto: batch_size.")
      .range(1, kMostImageBatch);
  f(shuffle, "shuffle", "Whether training reads the images in a new order in each epoch.");
  f(drop_last, "drop_last", "Whether an incomplete last batch of training is left out.");
  f(transforms, "transforms", "What happens to training images, in this order; none: batches are uint8.");
  f(device_transforms, "device_transforms",
    "What happens to whole batches of training images on the device, after transforms.");
  f(eval_transforms, "eval_transforms", "What happens to images of validation, test and predict, in this order.");
  f(eval_device_transforms, "eval_device_transforms",
    "What happens to whole batches of them on the device, after eval_transforms.");
  f(file_names, "file_names", "Whether batches of predict have the entry file, the paths.");
  loading.fields(f);
}

void ImageReadingOptions::fields(Fields& f) {
  f(channels, "channels", "3: RGB; 1: grey. Files of the other kind are converted.").range(1, 3);
  f(exif_orientation, "exif_orientation", "Whether images are turned as their EXIF orientation says.");
  f(scaled_decode, "scaled_decode",
    "Whether a JPEG is decoded at 1/2, 1/4 or 1/8 of its size if the first transform needs no more.");
  f(max_pixels, "max_pixels", "A file with more pixels is bad; found before memory is allocated.").range(1, 1e12);
  f(on_bad_sample, "on_bad_sample",
    "What happens if a file cannot be decoded; raise: the run fails; skip: training uses the next file instead, and "
    "evaluation leaves it out.");
  f(max_bad_samples, "max_bad_samples", "With skip: the run fails if a data set has more bad files.")
      .range(0, kMostImageBatch);
  f(cache_gb, "cache_gb",
    "GB of decoded images that each process keeps in memory for each of its data sets; then scaled_decode is off.")
      .range(0, 1e6);
}

ImageDatasetOptions ImageReadingOptions::dataset_options() const {
  ImageDatasetOptions options;
  options.decode.channels = channels;
  options.decode.exif_orientation = exif_orientation;
  options.decode.max_pixels = max_pixels;
  options.scaled_decode = scaled_decode;
  options.on_bad_sample = on_bad_sample;
  options.max_bad_samples = max_bad_samples;
  options.cache_bytes = static_cast<int64_t>(cache_gb * 1e9);
  return options;
}

ImageDataModule::ImageDataModule(std::string name, const ImageBatchOptions& options,
                                 std::unique_ptr<detail::ImageSets> sets)
    : impl_(std::make_unique<Impl>()) {
  impl_->name = std::move(name);
  impl_->options = options;
  impl_->sets = std::move(sets);
  impl_->for_training = stage_transforms(options.transforms, options.device_transforms);
  impl_->for_evaluation = stage_transforms(options.eval_transforms, options.eval_device_transforms);
}

ImageDataModule::~ImageDataModule() = default;

void ImageDataModule::setup(TrainerFn fn) {
  impl_->find_classes();
  const ImageBatchOptions& options = impl_->options;
  warn_if_normalized_differently(options);
  for (const RunningStage stage : stages_of(fn))
    if (!impl_->datasets.contains(stage)) impl_->datasets[stage] = impl_->make_dataset(stage);
}

std::vector<std::shared_ptr<Loader>> ImageDataModule::loaders(RunningStage stage) {
  const auto found = impl_->datasets.find(stage);
  if (found == impl_->datasets.end() || !found->second) return {};
  const ImageBatchOptions& options = impl_->options;
  const bool training = stage == RunningStage::train;
  DataLoaderOptions how;
  how.batch_size = training ? options.batch_size : options.eval_batch_size.value.value_or(options.batch_size);
  how.shuffle = training && options.shuffle;
  how.drop_last = training && options.drop_last;
  options.loading.apply(how);
  how.name = stage == RunningStage::validate ? "validation" : std::string(name_of(stage));
  return {std::make_shared<DataLoader>(found->second, std::move(how))};
}

const BatchTransforms* ImageDataModule::batch_transforms(RunningStage stage) const {
  const auto found = impl_->read_from.find(stage);
  return found == impl_->read_from.end() ? nullptr : found->second->batch_transforms();
}

StateTree ImageDataModule::exported_values() const {
  StateTree::List names;
  for (const std::string& name : impl_->classes) names.emplace_back(name);
  StateTree values = StateTree::map(
      {{"num_classes", static_cast<int64_t>(impl_->classes.size())}, {"classes", StateTree(std::move(names))}});
  if (const Impl::Shape* shape = impl_->known_shape()) {
    values["channels"] = shape->channels;
    values["height"] = shape->height;
    values["width"] = shape->width;
    values["num_features"] = shape->channels * shape->height * shape->width;
  }
  return values;
}

StateTree ImageDataModule::state() const {
  const std::vector<std::string>& classes = impl_->classes.empty() ? impl_->loaded : impl_->classes;
  if (classes.empty()) return {};
  StateTree::List names;
  for (const std::string& name : classes) names.emplace_back(name);
  return StateTree::map({{"classes", StateTree(std::move(names))}});
}

void ImageDataModule::load_state(const StateTree& state) {
  if (!state.contains("classes")) return;
  std::vector<std::string> names;
  for (const StateTree& name : state.at("classes").as_list()) names.push_back(name.as_string());
  if (!impl_->classes.empty()) impl_->check_classes(names, impl_->classes);
  impl_->loaded = std::move(names);
}

const std::vector<std::string>& ImageDataModule::classes() const { return impl_->classes; }

}  // namespace fulgur
