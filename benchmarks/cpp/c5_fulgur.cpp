// C5, Fulgur's ImageFolder and DataLoader. `--case cifar|photos`, `--decode full|scaled`; peers/c5_torch.py is the same
// in Python.
#include <ATen/TensorOperators.h>
#include <ATen/ops/bincount.h>

#include <cmath>

#include "bench.h"
#include "fulgur/data/data_loader.h"
#include "fulgur/images/geometry_transforms.h"
#include "fulgur/images/image_folder.h"
#include "fulgur/images/tensor_transforms.h"

namespace {

using at::Tensor;

fulgur::ImagePipeline transforms_of(const std::string& set) {
  using namespace fulgur::images;
  fulgur::ImagePipeline::Transforms transforms;
  if (set == "cifar") {
    RandomCrop::Options crop;
    crop.size = 32;
    crop.padding = 4;
    transforms.push_back(std::make_shared<RandomCrop>(crop));
  } else {
    RandomResizedCrop::Options crop;
    crop.size = 224;
    transforms.push_back(std::make_shared<RandomResizedCrop>(crop));
  }
  transforms.push_back(std::make_shared<RandomHorizontalFlip>(RandomHorizontalFlip::Options{}));
  Normalize::Options normalize;
  normalize.mean = {0.485, 0.456, 0.406};
  normalize.std = {0.229, 0.224, 0.225};
  transforms.push_back(std::make_shared<Normalize>(normalize));
  return fulgur::ImagePipeline(std::move(transforms));
}

/// How many images of each class an epoch has, and the mean and the deviation of all pixels.
struct Contents {
  Tensor classes;
  int64_t images = 0;
  double sum = 0, squares = 0, pixels = 0;

  void add(const fulgur::Batch& batch, int64_t class_count) {
    const Tensor &image = batch["image"], counts = batch["label"].bincount({}, class_count);
    classes = classes.defined() ? classes + counts : counts;
    images += image.size(0);
    sum += image.sum(at::kDouble).item<double>();
    squares += image.square().sum(at::kDouble).item<double>();
    pixels += static_cast<double>(image.numel());
  }
  nlohmann::json report() const {
    const double mean = sum / pixels;
    const int64_t* counts = classes.const_data_ptr<int64_t>();
    return {{"images", images},
            {"classes", std::vector<int64_t>(counts, counts + classes.numel())},
            {"mean", mean},
            {"deviation", std::sqrt(squares / pixels - mean * mean)}};
  }
};

void measure(const bench::Arguments& arguments) {
  const std::string set = arguments.text("case");
  fulgur::ImageDatasetOptions options;
  options.pipeline = transforms_of(set);
  options.scaled_decode = arguments.text("decode") == "scaled";
  const auto images = std::make_shared<fulgur::ImageFolder>(arguments.text("inputs") + "/" + set, options);
  const auto classes = static_cast<int64_t>(images->classes().size());
  fulgur::DataLoader loader(
      images, {.batch_size = arguments.number("batch"), .shuffle = true, .num_workers = arguments.number("workers")});
  loader.configure(/*seed=*/1, /*rank=*/0, /*world_size=*/1);
  fulgur::Batch batch;
  Contents contents;
  loader.start_epoch(0);
  while (loader.next(batch)) contents.add(batch, classes);
  bench::Laps laps;
  laps.stamp();
  const int64_t epochs = arguments.number("epochs");
  for (int64_t epoch = 1; epoch <= epochs; ++epoch) {
    loader.start_epoch(epoch);
    while (loader.next(batch)) {
    }
    laps.stamp();
  }
  bench::write_report(arguments, {{"cases", {{arguments.text("title"), laps.samples()}}},
                                  {"contents", {{arguments.text("title"), contents.report()}}}});
}

}  // namespace

int main(int count, char** values) { return bench::run(count, values, measure); }
