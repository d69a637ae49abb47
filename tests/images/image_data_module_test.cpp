#include "fulgur/images/image_data_modules.h"

#include <algorithm>
#include <map>
#include <set>

#include "fulgur/core/text/errors.h"
#include "images/image_support.h"
#include "support/expect_error.h"
#include "support/shown_lines.h"

namespace image_data_module_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
using Texts = std::vector<std::string>;

namespace {

[[maybe_unused]] const bool registered_corner =
    Registry<ImageTransform>::add<TestCorner>("TestCorner", "A corner of the image, for tests.");

Spec<ImageTransform> corner(int64_t size, bool random = false) {
  Spec<ImageTransform> spec("TestCorner");
  auto& options = dynamic_cast<OptionsOf<TestCorner::Options>&>(spec.options()).value;
  options.size = size;
  options.random = random;
  return spec;
}

/// Classes a and b with `count` images each, all of one size.
void write_classes(const std::filesystem::path& folder, int count) {
  for (const char* name : {"a", "b"})
    for (int i = 0; i < count; ++i)
      copy_fixture(i % 2 == 0 ? "colour.png" : "alpha.png", folder / name / (std::to_string(i) + ".png"));
}

ImageFolderDataModule::Options options_for(const std::filesystem::path& train) {
  ImageFolderDataModule::Options options;
  options.train_dir = train;
  options.batches.batch_size = 4;
  options.batches.file_names = true;
  return options;
}

Epoch epoch_of(DataModule& data, RunningStage stage, int64_t epoch = 0) {
  const auto loaders = data.loaders(stage);
  REQUIRE(loaders.size() == 1);
  loaders[0]->configure(1, 0, 1);
  return read_epoch(*loaders[0], epoch);
}

int64_t samples_of(DataModule& data, RunningStage stage) {
  const auto loaders = data.loaders(stage);
  return loaders.empty() ? 0 : loaders[0]->samples().value();
}

}  // namespace

TEST_CASE("one folder is split by class, the same in each run of one split seed") {
  const TemporaryFolder folder;
  write_classes(folder.path(), 10);
  auto options = options_for(folder.path());
  options.split.val_fraction = 0.2;
  options.split.test_fraction = 0.3;
  const auto tested = [&](int64_t seed) {
    options.split.split_seed = seed;
    ImageFolderDataModule data(options);
    data.setup(TrainerFn::fit);
    CHECK(samples_of(data, RunningStage::train) == 10);
    CHECK(numbers_of(epoch_of(data, RunningStage::validate).labels) == std::vector<int64_t>{0, 0, 1, 1});
    CHECK(data.loaders(RunningStage::test).empty());
    ImageFolderDataModule other(options);
    other.setup(TrainerFn::predict);
    const Epoch predicted = epoch_of(other, RunningStage::predict);
    CHECK(numbers_of(predicted.labels) == std::vector<int64_t>{0, 0, 0, 1, 1, 1});
    return predicted.files;
  };
  CHECK(tested(0) == tested(0));
  CHECK(tested(0) != tested(1));
}

TEST_CASE("the default keeps a tenth of the training images for validation") {
  const TemporaryFolder folder;
  write_classes(folder.path(), 10);
  ImageFolderDataModule data(options_for(folder.path()));
  data.setup(TrainerFn::fit);
  CHECK(samples_of(data, RunningStage::validate) == 2);
  CHECK(samples_of(data, RunningStage::train) == 18);
  data.setup(TrainerFn::test);
  CHECK(data.loaders(RunningStage::test).empty());
}

TEST_CASE("folders of their own serve the stages") {
  const TemporaryFolder folder;
  write_classes(folder / "train", 3);
  write_classes(folder / "val", 2);
  copy_fixture("grey.png", folder / "test/b/only.png");
  copy_fixture("grey.png", folder / "predict/x/1.png");
  copy_fixture("colour.png", folder / "predict/0.png");
  auto options = options_for(folder / "train");
  options.val_dir = folder / "val";
  options.test_dir = folder / "test";
  options.predict_dir = folder / "predict";
  options.allow_empty = true;
  options.batches.eval_batch_size = 3;
  ImageFolderDataModule data(options);
  for (const TrainerFn fn : {TrainerFn::fit, TrainerFn::test, TrainerFn::predict}) data.setup(fn);
  CHECK(samples_of(data, RunningStage::train) == 6);
  CHECK(samples_of(data, RunningStage::validate) == 4);
  CHECK(data.loaders(RunningStage::train)[0]->batch_size() == 4);
  CHECK(data.loaders(RunningStage::validate)[0]->batch_size() == 3);
  // The number of a class is that of the training data.
  CHECK(numbers_of(epoch_of(data, RunningStage::test).labels) == std::vector<int64_t>{1});
  const Epoch predicted = epoch_of(data, RunningStage::predict);
  CHECK(predicted.files == Texts{(folder / "predict/0.png").string(), (folder / "predict/x/1.png").string()});
  CHECK(predicted.labels.empty());
  // Only predict has files.
  CHECK(epoch_of(data, RunningStage::test).files.empty());
  options.batches.file_names = false;
  ImageFolderDataModule without(options);
  without.setup(TrainerFn::predict);
  CHECK(epoch_of(without, RunningStage::predict).files.empty());
}

TEST_CASE("transforms are those of the stage, and exported values know their result") {
  const TemporaryFolder folder;
  write_classes(folder.path(), 10);
  auto options = options_for(folder.path());
  CHECK(ImageFolderDataModule(options).exported_values().at("num_classes").as_int() == 0);  // before setup
  ImageFolderDataModule plain(options);
  plain.setup(TrainerFn::fit);
  CHECK(plain.exported_values().at("height").as_int() == 14);
  CHECK(plain.exported_values().at("width").as_int() == 19);
  options.batches.transforms = {corner(7, true), corner(6)};
  options.batches.eval_transforms = {corner(5)};
  options.reading.channels = 1;
  ImageFolderDataModule data(options);
  data.setup(TrainerFn::fit);
  const StateTree facts = data.exported_values();
  CHECK(facts.at("channels").as_int() == 1);
  CHECK(facts.at("height").as_int() == 6);
  CHECK(facts.at("num_features").as_int() == 36);
  CHECK(facts.at("num_classes").as_int() == 2);
  CHECK(facts.at("classes").as_list().at(1).as_string() == "b");
  CHECK(epoch_of(data, RunningStage::train).images[0].sizes() == at::IntArrayRef({1, 6, 6}));
  CHECK(epoch_of(data, RunningStage::validate).images[0].sizes() == at::IntArrayRef({1, 5, 5}));
  const auto first = epoch_of(data, RunningStage::train, 0), again = epoch_of(data, RunningStage::train, 0),
             next = epoch_of(data, RunningStage::train, 1);
  CHECK(equal_images(first.images, again.images));
  CHECK(!equal_images(first.images, next.images));
}

TEST_CASE("shuffle and drop_last are those of training") {
  const TemporaryFolder folder;
  write_classes(folder.path(), 9);
  auto options = options_for(folder.path());
  options.split.val_fraction = 0.0;
  options.batches.shuffle = false;
  ImageFolderDataModule in_order(options);
  in_order.setup(TrainerFn::fit);
  CHECK(in_order.loaders(RunningStage::validate).empty());
  const auto labels = numbers_of(epoch_of(in_order, RunningStage::train).labels);
  CHECK(labels.size() == 18);
  CHECK(std::is_sorted(labels.begin(), labels.end()));
  options.batches.shuffle = true;
  options.batches.drop_last = true;
  ImageFolderDataModule shuffled(options);
  shuffled.setup(TrainerFn::fit);
  const auto other = numbers_of(epoch_of(shuffled, RunningStage::train).labels);
  CHECK(other.size() == 16);
  CHECK(!std::is_sorted(other.begin(), other.end()));
}

TEST_CASE("a checkpoint's classes must be those of the data, in the same order") {
  const TemporaryFolder folder;
  write_classes(folder / "train", 2);
  write_classes(folder / "test", 1);
  auto options = options_for(folder / "train");
  options.split.val_fraction = 0.0;
  options.test_dir = folder / "test";
  ImageFolderDataModule trained(options);
  CHECK(trained.state().as_map().empty());
  trained.setup(TrainerFn::fit);
  const StateTree state = trained.state();
  CHECK(state.at("classes").as_list().size() == 2);

  const auto with_classes = [](const Texts& names) {
    StateTree::List list;
    for (const auto& name : names) list.emplace_back(name);
    return StateTree::map({{"classes", StateTree(std::move(list))}});
  };
  for (const Texts& names : {Texts{"b", "a"}, Texts{"a"}, Texts{"a", "b", "c"}}) {
    // After setup and before it.
    CHECK_THROWS_AS(trained.load_state(with_classes(names)), CheckpointError);
    ImageFolderDataModule fresh(options);
    fresh.load_state(with_classes(names));
    CHECK_THROWS_AS(fresh.setup(TrainerFn::test), CheckpointError);
  }
  CHECK_THAT(message_of<CheckpointError>([&] {
               trained.load_state(with_classes({"b", "a"}));
             }),
             ContainsSubstring("class 0 is 'b' in the checkpoint and 'a' in the data"));
  CHECK(trained.classes() == Texts{"a", "b"});

  // A machine that only evaluates needs no training data, but the classes.
  std::filesystem::remove_all(folder / "train");
  ImageFolderDataModule evaluating(options);
  CHECK_THAT(message_of<DataError>([&] { evaluating.setup(TrainerFn::test); }), ContainsSubstring("training data"));
  evaluating.load_state(state);
  evaluating.setup(TrainerFn::test);
  CHECK(numbers_of(epoch_of(evaluating, RunningStage::test).labels) == std::vector<int64_t>{0, 1});
  CHECK(evaluating.state().at("classes").as_list().size() == 2);
}

TEST_CASE("evaluation leaves bad files out, training replaces them") {
  const TemporaryFolder folder;
  write_classes(folder / "train", 4);
  write_classes(folder / "val", 3);
  write_text(folder / "train/a/1.png", "bad");
  write_text(folder / "val/a/1.png", "bad");
  auto options = options_for(folder / "train");
  options.val_dir = folder / "val";
  options.test_dir = folder / "val";
  options.batches.loading.num_workers = int64_t{2};
  {
    ImageFolderDataModule data(options);
    data.setup(TrainerFn::validate);
    CHECK_THAT(message_of<DataError>([&] { epoch_of(data, RunningStage::validate); }),
               ContainsSubstring("val/a/1.png") && ContainsSubstring("sample 1"));
  }
  options.reading.on_bad_sample = OnBadSample::skip;
  shown_lines([&] {
    ImageFolderDataModule data(options);
    data.setup(TrainerFn::fit);
    data.setup(TrainerFn::predict);
    CHECK(samples_of(data, RunningStage::train) == 8);
    CHECK(epoch_of(data, RunningStage::train).images.size() == 8);
    CHECK(numbers_of(epoch_of(data, RunningStage::validate).labels) == std::vector<int64_t>{0, 0, 1, 1, 1});
    Texts expected;
    for (const char* name : {"a/0.png", "a/2.png", "b/0.png", "b/1.png", "b/2.png"})
      expected.push_back((folder / "val" / name).string());
    CHECK(epoch_of(data, RunningStage::predict).files == expected);
    options.reading.max_bad_samples = 0;
    ImageFolderDataModule strict(options);
    CHECK_THROWS_AS(strict.setup(TrainerFn::validate), DataError);
  });
}

TEST_CASE("reading options reach the decoder") {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "a");
  copy_fixture("turned6.jpg", folder / "a/1.jpg");
  copy_fixture("turned6.jpg", folder / "a/2.jpg");
  auto options = options_for(folder.path());
  options.split.val_fraction = 0.0;
  const auto height = [&] {
    ImageFolderDataModule data(options);
    data.setup(TrainerFn::fit);
    return data.exported_values().at("height").as_int();
  };
  CHECK(height() == 20);
  options.reading.exif_orientation = false;
  CHECK(height() == 12);
  options.reading.max_pixels = 239;
  CHECK_THAT(message_of<DataError>([&] { height(); }), ContainsSubstring("max_pixels = 239"));
  options.reading.cache_gb = 0.5;
  options.reading.scaled_decode = false;
  CHECK(options.reading.dataset_options().cache_bytes == 500'000'000);
  CHECK(!options.reading.dataset_options().scaled_decode);
}

TEST_CASE("lists in CSV files are a data module as well") {
  const TemporaryFolder folder;
  std::string train = "path,kind\n", val = "{\"path\": \"images/3.png\", \"kind\": \"dog\"}\n";
  for (int i = 0; i < 20; ++i) {
    copy_fixture("colour.png", folder / ("images/" + std::to_string(i) + ".png"));
    train += "images/" + std::to_string(i) + ".png," + (i % 2 == 0 ? "cat" : "dog") + "\n";
  }
  write_text(folder / "train.csv", train);
  write_text(folder / "val.jsonl", val);
  LabelledImagesDataModule::Options options;
  options.train_file = folder / "train.csv";
  options.file_column = "path";
  options.label_column = "kind";
  options.batches.file_names = true;
  {
    LabelledImagesDataModule data(options);
    data.setup(TrainerFn::fit);
    CHECK(data.classes() == Texts{"cat", "dog"});
    CHECK(samples_of(data, RunningStage::train) == 18);
    std::vector<int64_t> labels = numbers_of(epoch_of(data, RunningStage::validate).labels);
    std::sort(labels.begin(), labels.end());
    CHECK(labels == std::vector<int64_t>{0, 1});
  }
  options.val_file = folder / "val.jsonl";
  std::filesystem::create_directories(folder / "lists");
  write_text(folder / "lists/predict.csv", "path\nimages/7.png\n");
  options.predict_file = folder / "lists/predict.csv";
  options.root = folder.path();
  LabelledImagesDataModule data(options);
  data.setup(TrainerFn::fit);
  data.setup(TrainerFn::predict);
  CHECK(samples_of(data, RunningStage::train) == 20);
  CHECK(numbers_of(epoch_of(data, RunningStage::validate).labels) == std::vector<int64_t>{1});
  CHECK(epoch_of(data, RunningStage::predict).files == Texts{(folder / "images/7.png").string()});
}

TEST_CASE("options that contradict each other are refused") {
  const TemporaryFolder folder;
  write_classes(folder.path(), 2);
  const auto refused = [&](auto change) {
    auto options = options_for(folder.path());
    change(options);
    return message_of<ConfigError>([&] { ImageFolderDataModule data(options); });
  };
  using Options = ImageFolderDataModule::Options;
  CHECK_THAT(refused([](Options& o) { o.train_dir = ""; }), ContainsSubstring("train_dir"));
  CHECK_THAT(refused([](Options& o) {
               o.val_dir = "x";
               o.split.val_fraction = 0.1;
             }),
             ContainsSubstring("val_dir and val_fraction"));
  CHECK_THAT(refused([](Options& o) {
               o.test_dir = "x";
               o.split.test_fraction = 0.1;
             }),
             ContainsSubstring("test_dir and test_fraction"));
  CHECK_THAT(refused([](Options& o) {
               o.split.val_fraction = 0.6;
               o.split.test_fraction = 0.4;
             }),
             ContainsSubstring("something to train on"));
  CHECK_THAT(refused([](Options& o) { o.reading.channels = 2; }), ContainsSubstring("1 or 3"));
  CHECK_THAT(refused([](Options& o) { o.batches.batch_size = 0; }), ContainsSubstring("batch_size"));
  CHECK_THAT(refused([](Options& o) { o.suffixes.clear(); }), ContainsSubstring("suffixes"));
  auto options = options_for(folder.path());
  options.split.val_fraction = 0.1;  // of four images: none
  ImageFolderDataModule data(options);
  CHECK_THAT(message_of<DataError>([&] { data.setup(TrainerFn::fit); }),
             ContainsSubstring("validation has none of the 4"));
}

TEST_CASE("a config makes the data modules, with transforms by name") {
  const TemporaryFolder folder;
  write_classes(folder.path(), 4);
  Spec<DataModule> spec("ImageFolderDataModule");
  std::vector<ConfigNode> transforms;
  transforms.push_back(corner(6).write());
  Fields fields;
  spec.options().fields(fields);
  Problems problems;
  for (const auto& [name, value] :
       std::map<std::string, ConfigNode>{{"train_dir", ConfigNode::string(folder.path().string())},
                                         {"val_fraction", ConfigNode::number(0.25)},
                                         {"transforms", ConfigNode::list(std::move(transforms))},
                                         {"on_bad_sample", ConfigNode::string("skip")}}) {
    const Field* field = fields.find(name);
    REQUIRE(field != nullptr);
    field->read(value, problems, name);
  }
  problems.throw_if_any();
  const auto data = spec.create();
  data->setup(TrainerFn::fit);
  CHECK(epoch_of(*data, RunningStage::train).images.at(0).sizes() == at::IntArrayRef({3, 6, 6}));
  CHECK(samples_of(*data, RunningStage::validate) == 2);
  for (const char* name : {"LabelledImagesDataModule", "Cifar10DataModule", "Cifar100DataModule"})
    CHECK(Registry<DataModule>::instance().find(name) != nullptr);
}

}  // namespace image_data_module_test
