#include "fulgur/data/mnist.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "datasets/idx.h"
#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/data/data_loader.h"
#include "fulgur/data/subset_dataset.h"
#include "fulgur/data/tensor_dataset.h"
#include "loading/option_bounds.h"

namespace fulgur {
namespace {

constexpr int64_t kClasses = 10;
constexpr std::array<const char*, 4> kFiles = {"train-images-idx3-ubyte", "train-labels-idx1-ubyte",
                                               "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"};
constexpr std::array<int64_t, 4> kPlainBytes = {47'040'016, 60'008, 7'840'016, 10'008};

struct Statistics {
  double mean = 0;
  double std = 1;
};

/// Mean and population standard deviation of pixels / 255; the sums are exact for any number of threads.
Statistics pixel_statistics(const Tensor& images) {
  const auto* pixels = images.const_data_ptr<uint8_t>();
  uint64_t sum = 0, squares = 0;
  for (int64_t i = 0; i < images.numel(); ++i) {
    const uint32_t pixel = pixels[i];
    sum += pixel;
    squares += pixel * pixel;
  }
  const auto count = static_cast<double>(images.numel());
  const double mean = static_cast<double>(sum) / count;
  const double variance = static_cast<double>(squares) / count - mean * mean;
  return {mean / 255, std::sqrt(std::max(variance, 0.0)) / 255};
}

}  // namespace

struct IdxImageDataModule::Impl {
  IdxImageOptions options;
  IdxImageSource source;
  std::shared_ptr<TensorDataset> train, val, test;
  std::optional<Statistics> statistics;
  std::optional<std::array<int64_t, 2>> image_size;

  std::string text(std::string_view message) const { return cat("[data.", source.module, "] ", message); }

  /// The file, plain or compressed; nullopt if neither exists.
  std::optional<std::filesystem::path> find(size_t file) const {
    for (const char* suffix : {"", ".gz"}) {
      std::filesystem::path path = options.data_dir / (std::string(kFiles[file]) + suffix);
      std::error_code error;
      if (std::filesystem::exists(path, error)) return path;
    }
    return std::nullopt;
  }

  void check_present(size_t first, size_t count) const {
    std::vector<std::string> missing;
    for (size_t file = first; file < first + count; ++file)
      if (!find(file))
        missing.push_back(cat(kFiles[file], " (", kPlainBytes[file], " bytes) or ", kFiles[file], ".gz (about ",
                              source.compressed_bytes[file], " bytes)"));
    if (!missing.empty())
      throw DataError(text(cat("files are missing in ", escape_controls(options.data_dir.string()), ": ",
                               join(missing, "; "), ". ", source.origin)));
  }

  /// Images and labels from the two files starting at `first`.
  Batch read_pair(size_t first) {
    check_present(first, 2);
    const std::filesystem::path image_path = find(first).value(), label_path = find(first + 1).value();
    const auto check_counts = [&](int64_t image_count, int64_t label_count) {
      if (image_count != label_count)
        throw DataError(text(cat("there must be as many images as labels; got ", image_count, " in ", image_path,
                                 " and ", label_count, " in ", label_path, ". Are the files mixed up?")));
    };
    // Before either is read completely, since a small file may unpack to gigabytes. A merely damaged file gets a more
    // specific error.
    const int64_t image_count = read_idx_sizes(image_path, 3)[0], label_count = read_idx_sizes(label_path, 1)[0];
    if (image_count / 2 > label_count) check_counts(image_count, label_count);
    auto images = std::make_shared<IdxArray>(read_idx(image_path, 3));
    const IdxArray labels = read_idx(label_path, 1);
    check_counts(images->dims[0], labels.dims[0]);
    const std::array<int64_t, 2> size = {images->dims[1], images->dims[2]};
    if (image_size && *image_size != size)
      throw DataError(
          text(cat("all images must have the same size; ", image_path, " has ", size[0], "x", size[1],
                   ", the other file ", image_size->at(0), "x", image_size->at(1), ". Are the files mixed up?")));
    Tensor classes = at::empty({labels.dims[0]}, at::kLong);
    auto* to = classes.mutable_data_ptr<int64_t>();
    for (size_t i = 0; i < labels.size; ++i) {
      if (labels.values[i] >= kClasses)
        throw DataError(text(cat("labels must be in [0, ", kClasses, "); got ", static_cast<int>(labels.values[i]),
                                 " at index ", i, "; file ", label_path, ". Fetch the file again.")));
      to[i] = labels.values[i];
    }
    image_size = size;
    Tensor pixels = at::from_blob(
        images->values.get(), {images->dims[0], 1, size[0], size[1]}, [images](void*) {}, at::kByte);
    return Batch({Batch::Entry{"image", pixels}, Batch::Entry{"label", classes}});
  }

  void read_training_part() {
    if (train) return;
    check_present(0, 4);
    const Batch all = read_pair(0);
    const int64_t count = all.size();
    if (options.val_size >= count)
      throw ConfigError(text(
          cat("val_size must leave samples for training; got ", options.val_size, " of ", count, ". Lower val_size.")));
    const auto parts =
        split_indices(count, {count - options.val_size, options.val_size}, static_cast<uint64_t>(options.split_seed));
    const auto take = [&](const std::vector<int64_t>& indices) {
      const Tensor index = at::tensor(indices, at::kLong);
      return std::make_shared<TensorDataset>(Batch({Batch::Entry{"image", all[0].index_select(0, index)},
                                                    Batch::Entry{"label", all[1].index_select(0, index)}}));
    };
    train = options.val_size == 0 ? std::make_shared<TensorDataset>(all) : take(parts[0]);
    if (options.val_size > 0) val = take(parts[1]);
  }

  void read_test_part() {
    if (!test) test = std::make_shared<TensorDataset>(read_pair(2));
  }

  void know_statistics() {
    if (!options.normalize || statistics) return;
    read_training_part();
    const Statistics found = pixel_statistics(train->samples()[0]);
    if (found.std == 0)
      throw DataError(
          text("normalize needs pixels that differ; all pixels of the training part are equal. Check the files or set "
               "normalize to false."));
    statistics = found;
  }

  Batch convert(Batch batch) {
    know_statistics();
    const Statistics s = options.normalize ? *statistics : Statistics{};
    // (x / 255 - mean) / std with one conversion and two in-place operations.
    Tensor image = batch[0].to(at::kFloat).mul_(1 / (255 * s.std));
    if (s.mean != 0) image.sub_(s.mean / s.std);
    batch.set(0, std::move(image));
    return batch;
  }
};

void IdxImageOptions::fields_but_data_dir(Fields& f) {
  f(batch_size, "batch_size", "Samples in a training batch.").range(1, detail::kMostSamples);
  f(eval_batch_size, "eval_batch_size",
    "Samples in a batch of validation, test and predict; auto: 1000, or batch_size if that is more.")
      .range(1, detail::kMostSamples);
  f(val_size, "val_size", "Training samples set aside for validation; 0: no validation.")
      .range(0, detail::kMostSamples);
  f(split_seed, "split_seed", "Chooses which samples are set aside; independent of the run's seed.").at_least(0);
  f(normalize, "normalize", "Subtract the mean of the training part and divide by its standard deviation.");
  f(shuffle, "shuffle", "Shuffle the training samples each epoch.");
  f(drop_last, "drop_last", "Drop the last training batch if it is incomplete.");
  loading.fields(f);
}

IdxImageDataModule::IdxImageDataModule(const IdxImageOptions& options, IdxImageSource source)
    : impl_(std::make_shared<Impl>()) {
  impl_->options = options;
  impl_->source = std::move(source);
  if (options.data_dir.empty())
    throw ConfigError(
        impl_->text("data_dir must name the folder with the idx files; it is empty. Set data.init_args.data_dir."));
  const int64_t eval_batch_size = options.eval_batch_size.value.value_or(1);
  if (options.batch_size < 1 || eval_batch_size < 1 || options.val_size < 0)
    throw ConfigError(
        impl_->text(cat("batch sizes must be at least 1 and val_size at least 0; got batch_size ", options.batch_size,
                        ", eval_batch_size ", eval_batch_size, ", val_size ", options.val_size, ".")));
}

IdxImageDataModule::~IdxImageDataModule() = default;

void IdxImageDataModule::setup(TrainerFn fn) {
  if (fn == TrainerFn::fit || fn == TrainerFn::validate)
    impl_->read_training_part();
  else
    impl_->read_test_part();
  // For test and predict they usually come from a checkpoint; else they are computed with the first batch.
  if (fn == TrainerFn::fit) impl_->know_statistics();
}

std::vector<std::shared_ptr<Loader>> IdxImageDataModule::loaders(RunningStage stage) {
  const bool training = stage == RunningStage::train;
  const auto& dataset = training ? impl_->train : stage == RunningStage::validate ? impl_->val : impl_->test;
  if (!dataset) return {};
  const IdxImageOptions& options = impl_->options;
  DataLoaderOptions how;
  how.batch_size = training ? options.batch_size
                            : options.eval_batch_size.value.value_or(std::max<int64_t>(options.batch_size, 1000));
  how.shuffle = training && options.shuffle;
  how.drop_last = training && options.drop_last;
  how.transform = [impl = impl_](Batch batch) { return impl->convert(std::move(batch)); };
  options.loading.apply(how);
  how.name = stage == RunningStage::validate ? "validation" : std::string(name_of(stage));
  return {std::make_shared<DataLoader>(dataset, std::move(how))};
}

StateTree IdxImageDataModule::exported_values() const {
  const auto [height, width] = impl_->image_size.value_or(std::array<int64_t, 2>{28, 28});
  return StateTree::map({{"num_classes", kClasses},
                         {"channels", 1},
                         {"height", height},
                         {"width", width},
                         {"num_features", height * width}});
}

StateTree IdxImageDataModule::state() const {
  if (!impl_->options.normalize || !impl_->statistics) return {};
  return StateTree::map({{"mean", impl_->statistics->mean}, {"std", impl_->statistics->std}});
}

void IdxImageDataModule::load_state(const StateTree& state) {
  if (!impl_->options.normalize || !state.contains("mean")) return;
  const Statistics loaded{state.at("mean").as_double(), state.at("std").as_double()};
  if (!std::isfinite(loaded.mean) || !std::isfinite(loaded.std) || loaded.std <= 0)
    throw CheckpointError(impl_->text(cat("mean and std of the data must be finite, std above 0; the state has mean ",
                                          loaded.mean, " and std ", loaded.std, ".")));
  impl_->statistics = loaded;
}

void FashionMnistDataModule::Options::fields(Fields& f) {
  f(data_dir, "data_dir", "Folder with the four idx files, plain or .gz.");
  fields_but_data_dir(f);
}

FashionMnistDataModule::FashionMnistDataModule(const Options& options)
    : IdxImageDataModule(options, {"FashionMnistDataModule",
                                   "Debian and Ubuntu have them: apt-get install dataset-fashion-mnist; or set "
                                   "data_dir to a folder that has them.",
                                   {26'421'856, 29'491, 4'422'079, 5'125}}) {}

void MnistDataModule::Options::fields(Fields& f) {
  f(data_dir, "data_dir", "Folder with the four idx files, plain or .gz.").required();
  fields_but_data_dir(f);
}

MnistDataModule::MnistDataModule(const Options& options)
    : IdxImageDataModule(options, {"MnistDataModule",
                                   "Set data_dir to a folder that has MNIST's original files.",
                                   {9'912'422, 28'881, 1'648'877, 4'542}}) {}

[[maybe_unused]] static const bool fashion_registered = Registry<DataModule>::add<FashionMnistDataModule>(
    "FashionMnistDataModule", "Fashion-MNIST: 60,000 + 10,000 grey images 28x28 of ten kinds of clothing.");
[[maybe_unused]] static const bool mnist_registered = Registry<DataModule>::add<MnistDataModule>(
    "MnistDataModule", "MNIST: 60,000 + 10,000 grey images 28x28 of handwritten digits.");

}  // namespace fulgur
