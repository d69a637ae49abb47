// Transforms on the device give a run the batches that transforms on workers give.
#include <ATen/ops/stack.h>
#include <c10/core/InferenceMode.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <set>

#include "fulgur/core/text/errors.h"
#include "fulgur/data/data_loader.h"
#include "fulgur/images/image_batch_transforms.h"
#include "fulgur/images/image_folder.h"
#include "images/image_support.h"
#include "images/made_cifar.h"
#include "images/transform_support.h"
#include "support/expect_error.h"
#include "support/gpu.h"
#include "support/shown_lines.h"
#include "trainer/capture/captured_fit.h"

namespace device_transforms_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

using Names = std::vector<std::string>;

Names names_of(const Batch& batch) {
  Names names;
  for (const auto& [name, value] : batch) names.push_back(name);
  return names;
}

ImagePipeline::Transforms crop_and_flip() {
  return {transform_of("RandomCrop", "{size: 12, padding: 3}"), transform_of("RandomHorizontalFlip")};
}

/// Images in memory, with the first `on_workers` of `transforms` on workers.
std::shared_ptr<ImageDataset> noise_images(const ImagePipeline::Transforms& transforms, size_t on_workers,
                                           int64_t count = 22) {
  std::vector<Tensor> images;
  std::vector<int64_t> labels;
  for (int64_t i = 0; i < count; ++i) {
    images.push_back(noise_image(3, 16, 15, static_cast<uint64_t>(i)));
    labels.push_back(i);
  }
  const auto middle = transforms.begin() + static_cast<std::ptrdiff_t>(on_workers);
  ImageDatasetOptions options;
  options.pipeline = ImagePipeline({transforms.begin(), middle});
  options.device_transforms = {middle, transforms.end()};
  options.with_file = true;
  return std::make_shared<ImageDataset>(at::stack(images), labels, options);
}

/// What an epoch yields after the transforms on the device, by label.
std::map<int64_t, Tensor> completed_epoch(const std::shared_ptr<ImageDataset>& dataset, int64_t epoch,
                                          int64_t workers = 0, int64_t rank = 0, int64_t ranks = 1) {
  DataLoaderOptions how;
  how.batch_size = 5;
  how.shuffle = true;
  how.num_workers = workers;
  DataLoader loader(dataset, how);
  loader.configure(9, rank, ranks);
  loader.start_epoch(epoch);
  std::map<int64_t, Tensor> images;
  Batch batch;
  while (loader.next(batch)) {
    const auto* const transforms = dataset->batch_transforms();
    const Batch whole = transforms ? transforms->apply(batch) : batch;
    for (int64_t i = 0; i < whole.size(); ++i) images[whole["label"][i].item<int64_t>()] = whole["image"][i].clone();
  }
  return images;
}

bool same_images(const std::map<int64_t, Tensor>& a, const std::map<int64_t, Tensor>& b) {
  return a.size() == b.size() && std::ranges::equal(a, b, [](const auto& x, const auto& y) {
           return x.first == y.first && x.second.equal(y.second);
         });
}

/// Notes what it sees.
struct Looking : Pixels {
  std::vector<Tensor> trained, evaluated, labels;
  std::vector<at::ScalarType> after;
  std::set<Names> entries, before;
  Batch on_before_batch_transfer(Batch batch, int64_t) override {
    before.insert(names_of(batch));
    return batch;
  }
  Batch on_after_batch_transfer(Batch batch, int64_t) override {
    entries.insert(names_of(batch));
    after.push_back(batch["image"].scalar_type());
    return batch;
  }
  StepOutput training_step(const Batch& batch, int64_t index) override {
    trained.push_back(batch["image"].clone());
    labels.push_back(batch["label"].clone());
    return Pixels::training_step(batch, index);
  }
  Outputs validation_step(const Batch& batch, int64_t index, int64_t loader) override {
    evaluated.push_back(batch["image"].clone());
    return Pixels::validation_step(batch, index, loader);
  }
  Outputs predict_step(const Batch& batch, int64_t index, int64_t loader) override {
    entries.insert(names_of(batch));
    evaluated.push_back(batch["image"].clone());
    return Pixels::predict_step(batch, index, loader);
  }
};

struct Fitted {
  std::shared_ptr<Looking> module;
  FitReport report;
};

Fitted fit_looking(const TrainerOptions& options, std::shared_ptr<DataModule> data, const CheckpointChoice& from = {}) {
  at::manual_seed(3);
  Fitted fitted{.module = std::make_shared<Looking>(), .report = {}};
  TrainerComponents components;
  components.seed = 5;
  fitted.report = Trainer(options, components).fit(fitted.module, std::move(data), from);
  return fitted;
}

}  // namespace

TEST_CASE("a crop at the end of the workers' transforms is read in inference mode too") {
  const ImagePipeline::Transforms transforms{transform_of("CenterCrop", "{size: 12}"),
                                             transform_of("RandomHorizontalFlip")};
  const auto expected = completed_epoch(noise_images(transforms, 1), 0);
  const c10::InferenceMode inference;
  for (const int64_t workers : {0, 1})
    CHECK(same_images(completed_epoch(noise_images(transforms, 1), 0, workers), expected));
}

TEST_CASE("a data set writes what is drawn for the transforms on the device, after its other entries") {
  const auto dataset = noise_images(crop_and_flip(), 0);
  const Batch prototype = dataset->prototype();
  CHECK(names_of(prototype) == Names{"image", "label", "file", "image.parameters"});
  CHECK(prototype["image.parameters"].sizes() == at::IntArrayRef({1, 3}));
  CHECK(prototype["image.parameters"].scalar_type() == at::kFloat);
  CHECK(prototype["image"].sizes() == at::IntArrayRef({1, 3, 16, 15}));
  REQUIRE(dataset->batch_transforms() != nullptr);
  CHECK(dataset->batch_transforms()->output_size() == ImageSize{12, 12});
  // Nothing is drawn, so there is no such entry.
  const auto fixed = noise_images({transform_of("ToFloat")}, 0);
  CHECK(names_of(fixed->prototype()) == Names{"image", "label", "file"});
  CHECK(fixed->batch_transforms()->parameters_entry().empty());
  CHECK(noise_images(crop_and_flip(), 2)->batch_transforms() == nullptr);
  CHECK(noise_images(crop_and_flip(), 2)->prototype().contains("image.parameters") == false);
}

TEST_CASE("the samples are those of transforms on workers, for any workers and ranks") {
  ImagePipeline::Transforms transforms = crop_and_flip();
  transforms.push_back(transform_of("Normalize", "{mean: 0.5, std: 0.2}"));
  transforms.push_back(transform_of("Cutout", "{length: 4, p: 0.6}"));
  const auto expected = completed_epoch(noise_images(transforms, transforms.size()), 1);
  REQUIRE(expected.size() == 22);
  CHECK_FALSE(same_images(expected, completed_epoch(noise_images(transforms, transforms.size()), 2)));
  for (size_t on_workers = 0; on_workers < transforms.size(); ++on_workers) {
    CAPTURE(on_workers);
    for (const int64_t workers : {0, 1, 3})
      CHECK(same_images(completed_epoch(noise_images(transforms, on_workers), 1, workers), expected));
    std::map<int64_t, Tensor> joined;
    for (int64_t rank = 0; rank < 2; ++rank)
      joined.merge(completed_epoch(noise_images(transforms, on_workers), 1, 2, rank, 2));
    CHECK(same_images(joined, expected));
  }
}

TEST_CASE("a sample that replaces a bad one has the numbers of the bad one") {
  const TemporaryFolder folder;
  const std::vector<std::string> fixtures{"colour.png", "alpha.png", "grey.png", "interlaced.png", "palette.png"};
  ImageList list{.root = folder.path(), .files = {}, .labels = {}, .classes = {}};
  for (size_t i = 0; i < 7; ++i) {
    list.files.push_back(std::to_string(i) + ".png");
    list.labels.push_back(static_cast<int64_t>(i));
    copy_fixture(fixtures[i % fixtures.size()], folder / list.files.back());
  }
  write_text(folder / "0.png", "bad");
  write_text(folder / "3.png", "bad");
  const auto images_of = [&](bool on_device) {
    ImageDatasetOptions options;
    const ImagePipeline::Transforms transforms = {transform_of("RandomCrop", "{size: 9, padding: 2}"),
                                                  transform_of("RandomHorizontalFlip")};
    if (on_device)
      options.device_transforms = transforms;
    else
      options.pipeline = ImagePipeline(transforms);
    options.on_bad_sample = OnBadSample::skip;
    const auto dataset = std::make_shared<ImageDataset>(list, options);
    DataLoaderOptions how;
    how.batch_size = 7;
    DataLoader loader(dataset, how);
    loader.configure(2, 0, 1);
    loader.start_epoch(0);
    Batch batch;
    REQUIRE(loader.next(batch));
    CHECK(numbers_of(batch["label"].unbind()) == std::vector<int64_t>{1, 1, 2, 4, 4, 5, 6});
    return on_device ? dataset->batch_transforms()->apply(batch)["image"] : batch["image"].clone();
  };
  shown_lines([&] {
    const Tensor expected = images_of(false), images = images_of(true);
    CHECK(images.equal(expected));
    CHECK_FALSE(images[0].equal(images[1]));  // of one file, with other numbers
  });
}

TEST_CASE("a collate function gets the numbers of each sample, and images of another size are refused") {
  const TemporaryFolder folder;
  copy_fixture("colour.png", folder / "0.png");
  copy_fixture("turned6.jpg", folder / "1.jpg");
  ImageDatasetOptions options;
  options.device_transforms = {transform_of("RandomHorizontalFlip")};
  const ImageDataset dataset({.root = folder.path(), .files = {"0.png", "1.jpg"}, .labels = {}, .classes = {}},
                             options);
  Batch out({Batch::Entry{"image", std::vector<Tensor>(1)}, Batch::Entry{"image.parameters", std::vector<Tensor>(1)}});
  const auto read = [&](int64_t index) { dataset.read(c10::ArrayRef<int64_t>(index), 0, out, {}); };
  read(0);
  CHECK(out.list("image.parameters")[0].sizes() == at::IntArrayRef({1}));
  CHECK_THAT(message_of<DataError>([&] { read(1); }),
             ContainsSubstring("transforms on the device need images of one size"));
}

TEST_CASE("transforms that cannot run on the device are refused, by their kind before any file is read") {
  Cifar10DataModule::Options options;
  options.data_dir = "absent";
  for (auto* const list : {&options.batches.device_transforms, &options.batches.eval_device_transforms}) {
    *list = transform_specs({"{class_path: RandomRotation, init_args: {degrees: 5}}"});
    CHECK_THAT(message_of<ConfigError>([&] { Cifar10DataModule data(options); }), ContainsSubstring("RandomRotation"));
    list->clear();
  }
  const TemporaryFolder folder;
  write_made_cifar(folder.path());
  options.data_dir = folder.path();
  options.val_size = 0;
  options.batches.device_transforms = transform_specs({"{class_path: RandomCrop, init_args: {size: 40}}"});
  Cifar10DataModule data(options);
  CHECK_THAT(message_of<ConfigError>([&] { data.setup(TrainerFn::fit); }), ContainsSubstring("40 x 40"));
  CHECK_THROWS_AS(ImageDataset(noise_image(3, 4, 4).unsqueeze(0), {},
                               {.device_transforms = {transform_of("RandomRotation", "{degrees: 5}")}}),
                  ConfigError);
}

TEST_CASE("the stage decides which transforms a batch gets, and exported values know their result") {
  const TemporaryFolder folder;
  write_made_cifar(folder.path());
  const auto data = made_cifar(folder.path(), 0);
  CHECK(data->batch_transforms(RunningStage::train) == nullptr);  // before setup
  data->setup(TrainerFn::fit);
  const auto* const training = data->batch_transforms(RunningStage::train);
  const auto* const validation = data->batch_transforms(RunningStage::validate);
  REQUIRE(training != nullptr);
  REQUIRE(validation != nullptr);
  CHECK(training != validation);
  CHECK(data->batch_transforms(RunningStage::test) == nullptr);
  const StateTree facts = data->exported_values();
  CHECK(facts.at("channels").as_int() == 3);
  CHECK(facts.at("height").as_int() == 8);
  CHECK(facts.at("width").as_int() == 8);
  CHECK(facts.at("num_features").as_int() == 192);
  CHECK(made_cifar(folder.path(), 5)->batch_transforms(RunningStage::train) == nullptr);
}

TEST_CASE("in a run, modules see the batches of transforms on workers, in each precision and stage") {
  const std::string precision = GENERATE("32-true", "bf16-true", "64-true", "bf16-mixed");
  CAPTURE(precision);
  const TemporaryFolder folder;
  write_made_cifar(folder.path());
  TrainerOptions options = quiet(folder);
  options.precision = Spec<Precision>(precision);
  options.num_sanity_val_steps = 1;
  const Fitted expected = fit_looking(options, made_cifar(folder.path(), 5));
  REQUIRE(expected.module->trained.size() == 7);
  REQUIRE(expected.module->evaluated.size() == 3);
  const auto predicted = [&](size_t on_workers) {
    const auto module = std::make_shared<Looking>();
    Trainer(options).predict(module, made_cifar(folder.path(), on_workers));
    CHECK(module->entries == std::set<Names>{{"image", "label", "file"}});
    return module->evaluated;
  };
  const auto expected_prediction = predicted(5);
  for (const size_t on_workers : {0, 2, 4}) {
    CAPTURE(on_workers);
    const Fitted fitted = fit_looking(options, made_cifar(folder.path(), on_workers, 2));
    CHECK(equal_images(fitted.module->trained, expected.module->trained));
    CHECK(equal_images(fitted.module->labels, expected.module->labels));
    CHECK(equal_images(fitted.module->evaluated, expected.module->evaluated));
    CHECK(fitted.module->trained[0].scalar_type() == expected.module->trained[0].scalar_type());
    CHECK(fitted.module->after == expected.module->after);
    CHECK(fitted.module->entries == std::set<Names>{{"image", "label"}});
    CHECK(fitted.module->before == std::set<Names>{{"image", "label"}});
    CHECK(same_weights(weights(*fitted.module), weights(*expected.module)));
    CHECK(equal_images(predicted(on_workers), expected_prediction));
  }
}

TEST_CASE("a run that is stopped inside an epoch and resumed sees the samples of one that was not") {
  const TemporaryFolder folder;
  write_made_cifar(folder.path());
  TrainerOptions options = quiet(folder);
  options.max_epochs = 2;
  const Fitted whole = fit_looking(options, made_cifar(folder.path(), 1, 2));
  REQUIRE(whole.module->trained.size() == 14);
  for (const int64_t stop : {3, 7, 9}) {
    CAPTURE(stop);
    TrainerOptions shorter = options;
    shorter.max_steps = stop;
    const Fitted first = fit_looking(shorter, made_cifar(folder.path(), 1, 2));
    REQUIRE(first.report.last_checkpoint);
    const Fitted second = fit_looking(options, made_cifar(folder.path(), 1, 2), first.report.last_checkpoint->string());
    CHECK(equal_images(second.module->trained, {whole.module->trained.begin() + stop, whole.module->trained.end()}));
    CHECK(same_weights(weights(*second.module), weights(*whole.module)));
  }
}

TEST_CASE("captured steps read the transformed images") {
  const TemporaryFolder folder;
  write_made_cifar(folder.path());
  TrainerOptions options = quiet(folder);
  options.max_epochs = 3;
  const auto plain = fit<Pixels>(options, false, {}, {}, 0, made_cifar(folder.path(), 1));
  const auto captured = fit<Pixels>(options, true, {}, {}, 0, made_cifar(folder.path(), 1));
  INFO(captured.told);
  CHECK(captured.counts.replays > 0);
  CHECK(same_weights(plain.weights, captured.weights));
  const auto on_workers = fit<Pixels>(options, true, {}, {}, 0, made_cifar(folder.path(), 5));
  CHECK(same_weights(on_workers.weights, captured.weights));
}

TEST_CASE("on a GPU, prefetched and captured runs train on the images of the CPU", "[gpu]") {
  require_gpus(1);
  const TemporaryFolder folder;
  write_made_cifar(folder.path());
  TrainerOptions options = quiet(folder);
  options.max_epochs = 3;
  const auto trained = [&](const std::string& accelerator, bool captures) {
    options.accelerator = accelerator;
    options.capture = captures;
    at::manual_seed(11);
    const auto module = std::make_shared<Pixels>();
    TrainerComponents components;
    components.seed = 5;
    Trainer(options, components).fit(module, std::shared_ptr<DataModule>(made_cifar(folder.path(), 0, 2)));
    return module->last->weight.detach().cpu();
  };
  const Tensor expected = trained("cpu", false);
  CHECK(trained("cuda", false).allclose(expected, 1e-4, 1e-5));
  CHECK(trained("cuda", true).allclose(expected, 1e-4, 1e-5));
}

}  // namespace device_transforms_test
