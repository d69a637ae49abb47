#include <set>

#include "fulgur/core/text/errors.h"
#include "fulgur/images/image_data_modules.h"
#include "images/image_support.h"
#include "support/expect_error.h"

namespace cifar_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

/// Records with the given bytes before the pixels, which are all `first + number of the record`.
void write_records(const std::filesystem::path& path, const std::vector<std::string>& labels, int first) {
  std::string bytes;
  for (const std::string& label : labels) bytes += label + std::string(3072, static_cast<char>(first++));
  write_text(path, bytes);
}

/// Five files of four images and a test file of three; image i has label i % 10 and pixels i.
void write_cifar10(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  int image = 0;
  const auto labels = [&](int count) {
    std::vector<std::string> all;
    for (int i = 0; i < count; ++i) all.emplace_back(1, static_cast<char>((image + i) % 10));
    return all;
  };
  for (int file = 1; file <= 5; ++file, image += 4)
    write_records(folder / ("data_batch_" + std::to_string(file) + ".bin"), labels(4), image);
  write_records(folder / "test_batch.bin", labels(3), image);
}

Cifar10DataModule::Options options_for(const std::filesystem::path& folder) {
  Cifar10DataModule::Options options;
  options.data_dir = folder;
  options.val_size = 0;
  options.batches.shuffle = false;
  options.batches.batch_size = 7;
  return options;
}

Epoch epoch_of(DataModule& data, RunningStage stage) {
  const auto loaders = data.loaders(stage);
  REQUIRE(loaders.size() == 1);
  return read_epoch(*loaders[0], 0);
}

}  // namespace

TEST_CASE("CIFAR-10's binary files become images and labels, from either folder") {
  const TemporaryFolder folder;
  write_cifar10(folder / "cifar-10-batches-bin");
  for (const auto& dir : {folder.path(), folder / "cifar-10-batches-bin"}) {
    Cifar10DataModule data(options_for(dir));
    data.setup(TrainerFn::fit);
    const Epoch train = epoch_of(data, RunningStage::train);
    REQUIRE(train.images.size() == 20);
    for (size_t i = 0; i < 20; ++i) {
      CHECK(train.images[i].sizes() == at::IntArrayRef({3, 32, 32}));
      CHECK(train.images[i].eq(static_cast<int64_t>(i)).all().item<bool>());
      CHECK(train.labels[i].item<int64_t>() == static_cast<int64_t>(i % 10));
    }
    CHECK(data.loaders(RunningStage::validate).empty());
    data.setup(TrainerFn::test);
    CHECK(numbers_of(epoch_of(data, RunningStage::test).labels) == std::vector<int64_t>{0, 1, 2});
    const StateTree facts = data.exported_values();
    CHECK(facts.at("num_classes").as_int() == 10);
    CHECK(facts.at("channels").as_int() == 3);
    CHECK(facts.at("height").as_int() == 32);
    CHECK(facts.at("width").as_int() == 32);
    CHECK(facts.at("num_features").as_int() == 3072);
    CHECK(facts.at("classes").as_list().at(3).as_string() == "cat");
  }
}

TEST_CASE("validation takes as many images of each class, by its own seed") {
  const TemporaryFolder folder;
  write_cifar10(folder.path());
  const auto split = [&](int64_t seed) {
    auto options = options_for(folder.path());
    options.val_size = 10;
    options.split_seed = seed;
    Cifar10DataModule data(options);
    data.setup(TrainerFn::fit);
    const Epoch val = epoch_of(data, RunningStage::validate), train = epoch_of(data, RunningStage::train);
    const auto labels = numbers_of(val.labels);
    CHECK(std::set<int64_t>(labels.begin(), labels.end()).size() == 10);
    CHECK(train.images.size() == 10);
    std::set<int64_t> all, chosen;
    for (const Tensor& image : val.images) chosen.insert(image[0][0][0].item<int64_t>());
    for (const Tensor& image : train.images) all.insert(image[0][0][0].item<int64_t>());
    all.insert(chosen.begin(), chosen.end());
    CHECK(all.size() == 20);
    return chosen;
  };
  CHECK(split(0) == split(0));
  CHECK(split(0) != split(1));
  auto options = options_for(folder.path());
  options.val_size = 20;
  Cifar10DataModule nothing_left(options);
  CHECK_THAT(message_of<ConfigError>([&] { nothing_left.setup(TrainerFn::fit); }), ContainsSubstring("20 of 20"));
}

TEST_CASE("CIFAR-100 has fine or coarse labels with the names of its files") {
  const TemporaryFolder folder;
  write_records(folder / "train.bin", {std::string("\x02\x05", 2), std::string("\x13\x63", 2)}, 1);
  write_records(folder / "test.bin", {std::string("\x00\x07", 2)}, 9);
  std::string fine, coarse;
  for (int i = 0; i < 100; ++i) fine += "fine" + std::to_string(i) + "\n";
  for (int i = 0; i < 20; ++i) coarse += "coarse" + std::to_string(i) + "\r\n";
  write_text(folder / "fine_label_names.txt", fine + "\n");
  write_text(folder / "coarse_label_names.txt", coarse);
  Cifar100DataModule::Options options;
  options.data_dir = folder.path();
  options.val_size = 0;
  options.batches.shuffle = false;
  for (const bool is_fine : {true, false}) {
    options.labels = is_fine ? Cifar100DataModule::Labels::fine : Cifar100DataModule::Labels::coarse;
    Cifar100DataModule data(options);
    data.setup(TrainerFn::fit);
    data.setup(TrainerFn::predict);
    CHECK(numbers_of(epoch_of(data, RunningStage::train).labels) ==
          (is_fine ? std::vector<int64_t>{5, 99} : std::vector<int64_t>{2, 19}));
    CHECK(numbers_of(epoch_of(data, RunningStage::predict).labels) == std::vector<int64_t>{is_fine ? 7 : 0});
    CHECK(data.classes().size() == (is_fine ? 100u : 20u));
    CHECK(data.classes().back() == (is_fine ? "fine99" : "coarse19"));
  }
  write_text(folder / "coarse_label_names.txt", "one\n");
  Cifar100DataModule data(options);
  CHECK_THAT(message_of<DataError>([&] { data.setup(TrainerFn::fit); }), ContainsSubstring("20 classes; it has 1"));
}

TEST_CASE("missing and damaged CIFAR files are named") {
  const TemporaryFolder folder;
  const auto refused = [&] {
    Cifar10DataModule data(options_for(folder.path()));
    return message_of<DataError>([&] { data.setup(TrainerFn::fit); });
  };
  CHECK_THAT(refused(),
             ContainsSubstring("data_batch_1.bin, data_batch_2.bin") && ContainsSubstring("cifar-10-batches-bin"));
  write_cifar10(folder.path());
  std::filesystem::remove(folder / "data_batch_4.bin");
  CHECK_THAT(refused(), ContainsSubstring("data_batch_4.bin") && !ContainsSubstring("data_batch_5.bin"));
  write_records(folder / "data_batch_4.bin", {std::string(1, '\x0a')}, 0);
  CHECK_THAT(refused(), ContainsSubstring("got 10 in record 0"));
  write_text(folder / "data_batch_4.bin", std::string(3073 + 5, '\1'));
  CHECK_THAT(refused(), ContainsSubstring("3078 bytes"));
  write_text(folder / "data_batch_4.bin", "");
  CHECK_THAT(refused(), ContainsSubstring("0 bytes"));
  std::filesystem::remove(folder / "data_batch_4.bin");
  std::filesystem::create_directory(folder / "data_batch_4.bin");
  CHECK_THAT(refused(), ContainsSubstring("folder"));
  CHECK_THROWS_AS(Cifar10DataModule(Cifar10DataModule::Options{}), ConfigError);
}

}  // namespace cifar_test
