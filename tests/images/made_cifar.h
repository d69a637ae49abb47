#pragma once

#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "fulgur/core/contracts/module.h"
#include "fulgur/core/state/split_mix.h"
#include "fulgur/images/image_data_modules.h"
#include "fulgur/optim/sgd.h"
#include "fulgur/trainer/yaml.h"
#include "support/temporary_folder.h"

namespace fulgur::test {

/// CIFAR-10's files with 12 random images each.
inline void write_made_cifar(const std::filesystem::path& folder) {
  SplitMix64 random(4);
  for (const char* name : {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
                           "data_batch_5.bin", "test_batch.bin"}) {
    std::string bytes;
    for (int image = 0; image < 12; ++image) {
      bytes += static_cast<char>(image % 10);
      for (int pixel = 0; pixel < 3072; ++pixel) bytes += static_cast<char>(random.below(256));
    }
    write_text(folder / name, bytes);
  }
}

/// Transforms of a config: YAML of a class_path with its init_args each.
inline std::vector<Spec<ImageTransform>> transform_specs(const std::vector<std::string>& yaml) {
  std::vector<Spec<ImageTransform>> specs;
  Problems problems;
  for (const std::string& text : yaml)
    specs.emplace_back().read(parse_yaml(text, "transforms", problems), problems, "transforms");
  problems.throw_if_any();
  return specs;
}

/// What workers and devices can both do: from 3 x 32 x 32 to 3 x 8 x 8.
inline std::vector<std::string> common_transforms() {
  return {"{class_path: ColorJitter, init_args: {brightness: 0.4, contrast: 0.4, saturation: 0.4}}",
          "{class_path: RandomCrop, init_args: {size: 8, padding: 2}}", "{class_path: RandomHorizontalFlip}",
          "{class_path: Normalize, init_args: {mean: 0.5, std: 0.25}}",
          "{class_path: RandomErasing, init_args: {p: 0.7}}"};
}

/// `common_transforms`, of which the first `on_workers` run on workers and the others on the device. Training has all
/// of them, evaluation those from the crop to Normalize.
inline std::shared_ptr<Cifar10DataModule> made_cifar(const std::filesystem::path& folder, size_t on_workers,
                                                     int64_t num_workers = 0) {
  const std::vector<std::string> all = common_transforms();
  const auto part = [&](size_t from, size_t to, bool workers) {
    const size_t middle = std::clamp(on_workers, from, to);
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(workers ? from : middle);
    return transform_specs({begin, all.begin() + static_cast<std::ptrdiff_t>(workers ? middle : to)});
  };
  Cifar10DataModule::Options options;
  options.data_dir = folder;
  options.val_size = 10;
  options.batches.batch_size = 8;
  options.batches.file_names = true;
  options.batches.transforms = part(0, 5, true);
  options.batches.device_transforms = part(0, 5, false);
  options.batches.eval_transforms = part(1, 4, true);
  options.batches.eval_device_transforms = part(1, 4, false);
  options.batches.loading.num_workers = num_workers;
  auto data = std::make_shared<Cifar10DataModule>(options);
  // As a factory does: hooks that are not overridden do not keep batches from being prefetched.
  fulgur::detail::ComponentAccess::find_overridden<DataModule>(*data);
  return data;
}

/// A linear layer on images of 3 x 8 x 8.
struct Pixels : LightningModule {
  struct Options {
    void fields(Fields&) {}
  };
  torch::nn::Linear last{nullptr};
  explicit Pixels(const Options& = {}) { last = register_module("last", torch::nn::Linear(3 * 8 * 8, 4)); }
  Tensor out(const Batch& batch) { return last->forward(batch["image"].flatten(1)); }
  StepOutput training_step(const Batch& batch, int64_t) override { return out(batch).square().mean(); }
  Outputs validation_step(const Batch& batch, int64_t, int64_t) override {
    log("val_loss", out(batch).square().mean());
    return {};
  }
  Outputs predict_step(const Batch& batch, int64_t, int64_t) override { return {{"y", out(batch)}}; }
  OptimizerPlan configure_optimizers() override {
    return std::make_shared<SGD>(SGD::Options{.lr = 0.03125, .momentum = 0.5});
  }
};

}  // namespace fulgur::test
