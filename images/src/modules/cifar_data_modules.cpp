#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "datasets/cifar.h"
#include "fulgur/core/options/checked_options.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/data/splits.h"
#include "fulgur/images/image_data_modules.h"
#include "modules/image_sets.h"

namespace fulgur {
namespace {

namespace fs = std::filesystem;

/// Where the parts of a CIFAR data set are, relative to its folder.
struct CifarLayout {
  std::string module;
  std::string folder;  ///< of the archive
  std::vector<std::string> train, test;
  std::string names;  ///< file with the names of the classes; empty: `known_names`
  std::vector<std::string> known_names;
  detail::CifarFormat format;
};

class CifarSets final : public detail::ImageSets {
 public:
  CifarSets(CifarLayout layout, const CifarOptions& options)
      : layout_(std::move(layout)),
        data_dir_(options.data_dir),
        val_size_(options.val_size),
        seed_(static_cast<uint64_t>(options.split_seed)) {
    if (data_dir_.empty())
      throw ConfigError(cat("[images.", layout_.module,
                            "] data_dir must name the folder of the binary files; it is "
                            "empty. Set data.init_args.data_dir."));
  }

  std::optional<std::vector<std::string>> classes() override {
    if (layout_.names.empty()) return layout_.known_names;
    std::error_code none;
    const fs::path file = folder() / layout_.names;
    if (!fs::exists(file, none)) return std::nullopt;
    return detail::read_cifar_names(file, layout_.format.classes);
  }

  fs::path source_of_classes() const override { return folder() / layout_.names; }

  ImageDatasetOptions reading() const override { return {}; }

  std::shared_ptr<ImageDataset> dataset(RunningStage stage, const std::vector<std::string>&,
                                        ImageDatasetOptions options) override {
    if (stage == RunningStage::test || stage == RunningStage::predict) {
      if (!test_.images.defined()) test_ = read(layout_.test);
      return std::make_shared<ImageDataset>(test_.images, test_.labels, std::move(options));
    }
    if (stage == RunningStage::validate && val_size_ == 0) return nullptr;
    read_training();
    const detail::CifarImages& part = stage == RunningStage::train ? train_ : val_;
    return std::make_shared<ImageDataset>(part.images, part.labels, std::move(options));
  }

 private:
  fs::path folder() const {
    std::error_code none;
    const fs::path below = data_dir_ / layout_.folder;
    return fs::is_directory(below, none) ? below : data_dir_;
  }

  detail::CifarImages read(const std::vector<std::string>& names) const {
    std::vector<fs::path> files;
    std::vector<std::string> missing;
    for (const std::string& name : names) {
      files.push_back(folder() / name);
      std::error_code none;
      if (!fs::exists(files.back(), none)) missing.push_back(name);
    }
    if (!missing.empty())
      throw DataError(cat("[images.", layout_.module, "] files are missing in ", escape_controls(folder().string()),
                          ": ", join(missing), ". Set data_dir to the folder of the data set's binary version (",
                          layout_.folder, ")."));
    return detail::read_cifar(files, layout_.format);
  }

  void read_training() {
    if (train_.images.defined()) return;
    detail::CifarImages all = read(layout_.train);
    const int64_t count = all.images.size(0);
    if (val_size_ >= count)
      throw ConfigError(cat("[images.", layout_.module, "] val_size must leave images for training; got ", val_size_,
                            " of ", count, ". Lower val_size."));
    if (val_size_ == 0) {
      train_ = std::move(all);
      return;
    }
    auto parts = stratified_split_indices(all.labels, {val_size_, count - val_size_}, seed_);
    for (auto& part : parts) std::sort(part.begin(), part.end());
    const auto take = [&](const std::vector<int64_t>& indices) {
      detail::CifarImages part{all.images.index_select(0, at::tensor(indices, at::kLong)), {}};
      for (const int64_t index : indices) part.labels.push_back(all.labels[static_cast<size_t>(index)]);
      return part;
    };
    val_ = take(parts[0]);
    train_ = take(parts[1]);
  }

  CifarLayout layout_;
  fs::path data_dir_;
  int64_t val_size_;
  uint64_t seed_;
  detail::CifarImages train_, val_, test_;
};

std::unique_ptr<detail::ImageSets> cifar10_sets(const CifarOptions& given) {
  return std::make_unique<CifarSets>(
      CifarLayout{
          .module = "Cifar10DataModule",
          .folder = "cifar-10-batches-bin",
          .train = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"},
          .test = {"test_batch.bin"},
          .names = "",
          .known_names = {"airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"},
          .format = {.label_bytes = 1, .label_at = 0, .classes = 10}},
      detail::checked_options(given, "images.Cifar10DataModule"));
}

std::unique_ptr<detail::ImageSets> cifar100_sets(const Cifar100DataModule::Options& given) {
  const auto options = detail::checked_options(given, "images.Cifar100DataModule");
  const bool fine = options.labels == Cifar100DataModule::Labels::fine;
  // A record begins with the coarse label.
  return std::make_unique<CifarSets>(
      CifarLayout{.module = "Cifar100DataModule",
                  .folder = "cifar-100-binary",
                  .train = {"train.bin"},
                  .test = {"test.bin"},
                  .names = fine ? "fine_label_names.txt" : "coarse_label_names.txt",
                  .known_names = {},
                  .format = {.label_bytes = 2, .label_at = fine ? 1 : 0, .classes = fine ? 100 : 20}},
      options);
}

}  // namespace

void CifarOptions::fields(Fields& f) {
  f(data_dir, "data_dir", "Folder with the files of the binary version, or the one above it.").required();
  f(val_size, "val_size", "Training images that are the validation set, as many of each class; 0: none.").range(0, 1e9);
  f(split_seed, "split_seed", "Which images val_size takes; independent of the run's seed.");
  batches.fields(f);
}

Cifar10DataModule::Cifar10DataModule(const Options& options)
    : ImageDataModule("Cifar10DataModule", options.batches, cifar10_sets(options)) {}

void Cifar100DataModule::Options::fields(Fields& f) {
  f(labels, "labels", "fine: 100 classes; coarse: 20 groups of them.");
  CifarOptions::fields(f);
}

Cifar100DataModule::Cifar100DataModule(const Options& options)
    : ImageDataModule("Cifar100DataModule", options.batches, cifar100_sets(options)) {}

[[maybe_unused]] static const bool registered_cifar10 = Registry<DataModule>::add<Cifar10DataModule>(
    "Cifar10DataModule", "CIFAR-10: 50,000 + 10,000 colour images 32x32 of ten classes, from its binary files.");
[[maybe_unused]] static const bool registered_cifar100 = Registry<DataModule>::add<Cifar100DataModule>(
    "Cifar100DataModule", "CIFAR-100: 50,000 + 10,000 colour images 32x32 of 100 classes, from its binary files.");

}  // namespace fulgur
