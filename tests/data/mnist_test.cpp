#include "fulgur/data/mnist.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <set>
#include <string_view>

#include "data/idx_files.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/data/data_loader.h"
#include "support/expect_error.h"

namespace mnist_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

MnistDataModule::Options small_options(const std::filesystem::path& folder) {
  MnistDataModule::Options options;
  options.data_dir = folder;
  options.batch_size = 8;
  options.val_size = 6;
  return options;
}

/// All images and labels of a stage's only loader.
std::pair<Tensor, Tensor> all_of(DataModule& data, RunningStage stage) {
  const auto loaders = data.loaders(stage);
  REQUIRE(loaders.size() == 1);
  loaders[0]->start_epoch(0);
  std::vector<Tensor> images, labels;
  Batch batch;
  while (loaders[0]->next(batch)) {
    images.push_back(batch["image"]);
    labels.push_back(batch["label"]);
  }
  return {at::cat(images), at::cat(labels)};
}

/// The images' numbers, which are their pixels.
std::vector<int64_t> numbers_of(const Tensor& images) {
  std::vector<int64_t> numbers;
  for (int64_t i = 0; i < images.size(0); ++i)
    numbers.push_back(static_cast<int64_t>(std::lround(images[i][0][0][0].item<double>() * 255)));
  return numbers;
}

bool close_to(double a, double b, double tolerance) { return std::abs(a - b) < tolerance; }

}  // namespace

TEST_CASE("MNIST files become float images and int64 labels") {
  for (const bool compressed : {false, true}) {
    const TemporaryFolder folder;
    write_small_mnist(folder.path(), 30, 12, compressed);
    auto options = small_options(folder.path());
    options.normalize = false;
    options.shuffle = false;
    MnistDataModule data(options);
    data.setup(TrainerFn::fit);
    const auto [images, labels] = all_of(data, RunningStage::train);
    CHECK(images.sizes() == at::IntArrayRef({24, 1, 4, 3}));
    CHECK(images.scalar_type() == at::kFloat);
    CHECK(labels.scalar_type() == at::kLong);
    const auto numbers = numbers_of(images);
    CHECK(std::is_sorted(numbers.begin(), numbers.end()));
    for (size_t i = 0; i < numbers.size(); ++i)
      CHECK(labels[static_cast<int64_t>(i)].item<int64_t>() == numbers[i] % 10);
    CHECK(data.loaders(RunningStage::test).empty());
    data.setup(TrainerFn::test);
    CHECK(all_of(data, RunningStage::test).second.size(0) == 12);
    CHECK(all_of(data, RunningStage::predict).second.size(0) == 12);
  }
}

TEST_CASE("the validation set is disjoint from training and the same in each run") {
  const TemporaryFolder folder;
  write_small_mnist(folder.path(), 30, 12);
  auto options = small_options(folder.path());
  options.normalize = false;
  std::vector<std::vector<int64_t>> validations;
  for (const int64_t split_seed : {0, 0, 1}) {
    options.split_seed = split_seed;
    MnistDataModule data(options);
    data.setup(TrainerFn::fit);
    auto train = numbers_of(all_of(data, RunningStage::train).first);
    validations.push_back(numbers_of(all_of(data, RunningStage::validate).first));
    CHECK(validations.back().size() == 6);
    train.insert(train.end(), validations.back().begin(), validations.back().end());
    CHECK(std::set<int64_t>(train.begin(), train.end()).size() == 30);
  }
  CHECK(validations[0] == validations[1]);
  CHECK(validations[0] != validations[2]);
}

TEST_CASE("val_size 0 has no validation loader and trains on all") {
  const TemporaryFolder folder;
  write_small_mnist(folder.path(), 30, 12);
  auto options = small_options(folder.path());
  options.val_size = 0;
  MnistDataModule data(options);
  data.setup(TrainerFn::fit);
  CHECK(data.loaders(RunningStage::validate).empty());
  CHECK(all_of(data, RunningStage::train).first.size(0) == 30);
  options.val_size = 30;
  MnistDataModule nothing_left(options);
  CHECK_THAT(message_of<ConfigError>([&] { nothing_left.setup(TrainerFn::fit); }), ContainsSubstring("30 of 30"));
}

TEST_CASE("images are normalised by the training part, and checkpoints keep its values") {
  const TemporaryFolder folder;
  write_small_mnist(folder.path(), 30, 12);
  MnistDataModule data(small_options(folder.path()));
  CHECK(data.state().as_map().empty());
  data.setup(TrainerFn::fit);
  const Tensor images = all_of(data, RunningStage::train).first.to(at::kDouble);
  CHECK(close_to(images.mean().item<double>(), 0, 1e-6));
  CHECK(close_to(images.std(false).item<double>(), 1, 1e-6));
  const StateTree state = data.state();

  MnistDataModule evaluation(small_options(folder.path()));
  evaluation.setup(TrainerFn::test);
  const auto loaders = evaluation.loaders(RunningStage::test);
  evaluation.load_state(StateTree::map({{"mean", 0.5}, {"std", 0.25}}));  // also for loaders that are there already
  Batch batch;
  loaders[0]->start_epoch(0);
  REQUIRE(loaders[0]->next(batch));
  CHECK(close_to(batch[0][11][0][0][0].item<double>(), (11 / 255.0 - 0.5) / 0.25, 1e-6));
  CHECK(evaluation.state().at("mean").as_double() == 0.5);

  MnistDataModule fresh(small_options(folder.path()));
  fresh.setup(TrainerFn::test);
  MnistDataModule loaded(small_options(folder.path()));
  loaded.setup(TrainerFn::test);
  loaded.load_state(state);
  CHECK(at::equal(all_of(fresh, RunningStage::test).first, all_of(loaded, RunningStage::test).first));
  CHECK_THROWS_AS(loaded.load_state(StateTree::map({{"mean", 0.5}, {"std", 0.0}})), CheckpointError);
}

TEST_CASE("facts give other components the shape of the data") {
  const TemporaryFolder folder;
  write_small_mnist(folder.path(), 30, 12);
  MnistDataModule data(small_options(folder.path()));
  data.setup(TrainerFn::fit);
  const StateTree facts = data.exported_values();
  CHECK(facts.at("num_classes").as_int() == 10);
  CHECK(facts.at("channels").as_int() == 1);
  CHECK(facts.at("height").as_int() == 4);
  CHECK(facts.at("width").as_int() == 3);
  CHECK(facts.at("num_features").as_int() == 12);
}

TEST_CASE("a plain file comes before a compressed one") {
  const TemporaryFolder folder;
  write_small_mnist(folder.path(), 30, 12);
  write_text(folder / "train-images-idx3-ubyte.gz", "damaged");
  MnistDataModule data(small_options(folder.path()));
  data.setup(TrainerFn::fit);
  CHECK(all_of(data, RunningStage::train).first.size(0) == 24);
}

TEST_CASE("missing files are listed with sizes and where to get them") {
  const TemporaryFolder folder;
  FashionMnistDataModule::Options options;
  CHECK(options.data_dir == "/usr/share/datasets/fashion-mnist");
  options.data_dir = folder.path();
  FashionMnistDataModule data(options);
  CHECK_THAT(message_of<DataError>([&] { data.setup(TrainerFn::fit); }),
             ContainsSubstring(folder.path().string()) &&
                 ContainsSubstring("train-images-idx3-ubyte (47040016 bytes)") &&
                 ContainsSubstring("train-labels-idx1-ubyte.gz (about 29491 bytes)") &&
                 ContainsSubstring("t10k-images-idx3-ubyte") && ContainsSubstring("t10k-labels-idx1-ubyte") &&
                 ContainsSubstring("apt-get install dataset-fashion-mnist"));
  write_text(folder / "t10k-labels-idx1-ubyte", "x");
  const std::string rest = message_of<DataError>([&] { data.setup(TrainerFn::test); });
  CHECK_THAT(rest, ContainsSubstring("t10k-images-idx3-ubyte") && !ContainsSubstring("labels"));
}

TEST_CASE("data_dir of MNIST is required") {
  CHECK_THROWS_AS(MnistDataModule(MnistDataModule::Options()), ConfigError);
  MnistDataModule::Options options;
  Fields fields;
  options.fields(fields);
  Problems problems;
  fields.read(ConfigNode::map(), problems, "data.init_args");
  REQUIRE(problems.items().size() == 1);
  CHECK_THAT(problems.report(), ContainsSubstring("data_dir"));
}

TEST_CASE("F37: a damaged file is named with what is wrong, whichever of the four it is") {
  const TemporaryFolder folder;
  for (const char* name :
       {"train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"}) {
    const bool train = std::string_view(name).starts_with("train"),
               images = std::string_view(name).find("images") != std::string_view::npos;
    write_small_mnist(folder.path(), 30, 12);
    const std::string whole = read_text(folder / name);
    const uint32_t count = train ? 30 : 12;
    const std::string header = images ? idx_text({count, 4, 3}, "") : idx_text({count}, "");
    const std::string more = images ? idx_text({count + 1, 4, 3}, "") : idx_text({count + 1}, "");
    std::string magic = whole;
    magic[0] = '\1';
    struct Damage {
      std::string file, content;
      const char* text;
    };
    const std::string gz = std::string(name) + ".gz";
    const std::vector<Damage> damages = {
        {name, "", "must not be empty; got 0 bytes"},
        {name, whole.substr(0, whole.size() - 1), "the file has"},
        {name, magic, "begins with 00 00 08"},
        {name, more + whole.substr(header.size()), "the file has"},
        {name, "version https://git-lfs.github.com/spec/v1\n", "begins with 00 00 08"},
        {gz, "", "must not be empty; got 0 bytes"},
        {gz, gzip(whole).substr(0, 30), "ends too early"},
        {gz, gzip(more + whole.substr(header.size())), "the file holds"},
        {gz, gzip_bomb(header), "the file holds more"},
    };
    for (const Damage& damage : damages) {
      INFO(damage.file << ": " << damage.text);
      std::filesystem::remove(folder / name);
      std::filesystem::remove(folder / gz);
      write_text(folder / damage.file, damage.content);
      MnistDataModule data(small_options(folder.path()));
      try {
        data.setup(train ? TrainerFn::fit : TrainerFn::test);
        FAIL("nothing was thrown");
      } catch (const DataError& error) {
        CHECK(static_cast<int>(error.code()) == 3);
        CHECK_THAT(error.what(), ContainsSubstring((folder / damage.file).string()) && ContainsSubstring(damage.text));
      }
    }
    std::filesystem::remove(folder / gz);
  }
}

TEST_CASE("options of the idx data modules reach their loaders") {
  const TemporaryFolder folder;
  write_small_mnist(folder.path(), 30, 12);
  auto options = small_options(folder.path());
  options.batch_size = 5;
  options.eval_batch_size = int64_t{4};
  options.drop_last = true;
  options.loading.num_workers = int64_t{1};
  MnistDataModule data(options);
  data.setup(TrainerFn::fit);
  data.setup(TrainerFn::test);
  const auto train = data.loaders(RunningStage::train).at(0), val = data.loaders(RunningStage::validate).at(0),
             test = data.loaders(RunningStage::test).at(0);
  CHECK(train->batch_size() == 5);
  CHECK(train->size() == 4);  // 24 samples
  CHECK(train->shuffles());
  CHECK(val->batch_size() == 4);
  CHECK(val->size() == 2);  // 6 samples: evaluation drops none
  CHECK(test->size() == 3);
  for (const auto& loader : {train, val, test}) CHECK(dynamic_cast<DataLoader&>(*loader).num_workers() == 1);
  options.shuffle = options.drop_last = false;
  options.eval_batch_size = Auto<int64_t>();
  MnistDataModule other(options);
  other.setup(TrainerFn::fit);
  CHECK_FALSE(other.loaders(RunningStage::train).at(0)->shuffles());
  CHECK(other.loaders(RunningStage::train).at(0)->size() == 5);
  CHECK(other.loaders(RunningStage::validate).at(0)->batch_size() == 1000);
}

TEST_CASE("F38: a label out of range is named with file, index and value before training") {
  const TemporaryFolder folder;
  write_small_mnist(folder.path(), 30, 12);
  std::string labels(30, '\3');
  labels[17] = '\12';
  write_text(folder / "train-labels-idx1-ubyte", idx_text({30}, labels));
  MnistDataModule data(small_options(folder.path()));
  CHECK_THAT(message_of<DataError>([&] { data.setup(TrainerFn::fit); }),
             ContainsSubstring("got 10 at index 17") && ContainsSubstring("train-labels-idx1-ubyte"));
}

TEST_CASE("F38: files that do not belong together are refused") {
  const TemporaryFolder folder;
  write_small_mnist(folder.path(), 30, 12);
  write_text(folder / "train-labels-idx1-ubyte", idx_text({29}, std::string(29, '\1')));
  MnistDataModule data(small_options(folder.path()));
  CHECK_THAT(message_of<DataError>([&] { data.setup(TrainerFn::fit); }),
             ContainsSubstring("got 30 in") && ContainsSubstring("29 in"));
  write_text(folder / "train-labels-idx1-ubyte", idx_text({30}, std::string(30, '\1')));
  write_text(folder / "t10k-images-idx3-ubyte", idx_text({12, 2, 2}, std::string(48, '\1')));
  data.setup(TrainerFn::fit);
  CHECK_THAT(message_of<DataError>([&] { data.setup(TrainerFn::test); }),
             ContainsSubstring("2x2") && ContainsSubstring("4x3"));
}

TEST_CASE("F38: pixels that are all equal cannot be normalised") {
  const TemporaryFolder folder;
  write_small_mnist(folder.path(), 30, 12);
  write_text(folder / "train-images-idx3-ubyte", idx_text({30, 4, 3}, std::string(360, '\7')));
  auto options = small_options(folder.path());
  MnistDataModule data(options);
  CHECK_THROWS_AS(data.setup(TrainerFn::fit), DataError);
  options.normalize = false;
  MnistDataModule plain(options);
  plain.setup(TrainerFn::fit);
  CHECK(all_of(plain, RunningStage::train).first.size(0) == 24);
}

TEST_CASE("all of MNIST has its known mean and deviation") {
  const char* trial = std::getenv("FULGUR_TRIAL_DATA");
  if (trial == nullptr || !std::filesystem::exists(std::filesystem::path(trial) / "mnist"))
    SKIP("FULGUR_TRIAL_DATA names no folder with mnist/");
  MnistDataModule::Options options;
  options.data_dir = std::filesystem::path(trial) / "mnist";
  options.val_size = 0;
  MnistDataModule data(options);
  data.setup(TrainerFn::fit);
  CHECK(close_to(data.state().at("mean").as_double(), 0.13066, 5e-6));
  CHECK(close_to(data.state().at("std").as_double(), 0.30811, 5e-6));
  CHECK(data.loaders(RunningStage::train)[0]->samples() == 60000);
}

TEST_CASE("Fashion-MNIST is read from Debian's package") {
  const FashionMnistDataModule::Options options;
  if (!std::filesystem::exists(options.data_dir / "train-images-idx3-ubyte.gz"))
    SKIP("the package dataset-fashion-mnist is not installed");
  FashionMnistDataModule data(options);
  data.setup(TrainerFn::fit);
  data.setup(TrainerFn::test);
  CHECK(data.loaders(RunningStage::train)[0]->samples() == 55000);
  CHECK(data.loaders(RunningStage::train)[0]->size() == 860);
  CHECK(data.loaders(RunningStage::validate)[0]->samples() == 5000);
  CHECK(data.loaders(RunningStage::test)[0]->samples() == 10000);
  CHECK(data.loaders(RunningStage::test)[0]->batch_size() == 1000);
  CHECK(data.loaders(RunningStage::train)[0]->shuffles());
  CHECK_FALSE(data.loaders(RunningStage::validate)[0]->shuffles());
  CHECK(close_to(data.state().at("mean").as_double(), 0.2860, 1e-3));
  CHECK(close_to(data.state().at("std").as_double(), 0.3530, 1e-3));
  const auto [images, labels] = all_of(data, RunningStage::test);
  CHECK(labels[0].item<int64_t>() == 9);  // the first test image is an ankle boot
  for (int64_t c = 0; c < 10; ++c) CHECK(labels.eq(c).sum().item<int64_t>() == 1000);
}

TEST_CASE("F37: images that are not as many as the labels are refused before they are unpacked") {
  const TemporaryFolder folder;
  write_small_mnist(folder.path(), 20, 10, true);
  // 10 MB that unpack to the 1.6 GB that their header asks for, and more.
  write_text(folder / "train-images-idx3-ubyte.gz", gzip_bomb(idx_text({2'000'000, 28, 28}, "")));
  MnistDataModule data(small_options(folder.path()));
  const auto began = std::chrono::steady_clock::now();
  CHECK_THAT(message_of<DataError>([&] { data.setup(TrainerFn::fit); }),
             ContainsSubstring("got 2000000 in ") && ContainsSubstring(" and 20 in "));
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::milliseconds(500));
}

}  // namespace mnist_test
