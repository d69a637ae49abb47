#include "fulgur/data/text_data_module.h"

#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>

#include <cstdlib>
#include <set>

#include "fulgur/core/text/errors.h"
#include "support/expect_error.h"
#include "support/temporary_folder.h"

namespace text_data_module_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using test::message_of;
using test::TemporaryFolder;
using test::write_text;

namespace {

/// 1,000 bytes, of which byte i is i modulo 251: a window says where it began.
std::string counted() {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>(i % 251);
  return text;
}

struct File {
  TemporaryFolder folder;
  TextDataModule::Options options;
  explicit File(const std::string& text, TextDataModule::Tokens tokens = TextDataModule::Tokens::bytes) {
    write_text(folder / "text.txt", text);
    options.path = folder / "text.txt";
    options.tokens = tokens;
    options.block_size = 10;
    options.batch_size = 8;
    options.test_fraction = 0.2;
  }
  std::unique_ptr<TextDataModule> made() const {
    auto data = std::make_unique<TextDataModule>(options);
    data->setup(TrainerFn::fit);
    return data;
  }
};

/// Inputs and targets of an epoch, (windows, block_size).
std::pair<Tensor, Tensor> all_of(DataModule& data, RunningStage stage, int64_t epoch = 0, uint64_t seed = 1) {
  const auto loaders = data.loaders(stage);
  REQUIRE(loaders.size() == 1);
  loaders[0]->configure(seed, 0, 1);
  loaders[0]->start_epoch(epoch);
  std::vector<Tensor> inputs, targets;
  for (Batch batch; loaders[0]->next(batch);) {
    inputs.push_back(batch["input"].clone());
    targets.push_back(batch["target"].clone());
  }
  return {at::cat(inputs), at::cat(targets)};
}

std::vector<int64_t> first_tokens(const Tensor& windows) {
  const Tensor first = windows.select(1, 0).contiguous();
  return {first.const_data_ptr<int64_t>(), first.const_data_ptr<int64_t>() + first.numel()};
}

}  // namespace

TEST_CASE("a text is cut into parts, and windows with what follows each token") {
  const File file(counted());
  const auto made = file.made();
  TextDataModule& data = *made;
  const auto [input, target] = all_of(data, RunningStage::validate);
  CHECK(input.scalar_type() == at::kLong);
  // 700 tokens for training, [700, 800) for validation, [800, 1000) for test; a window needs one token after it.
  REQUIRE(input.sizes() == at::IntArrayRef({9, 10}));
  CHECK(at::equal(input.reshape(-1), at::arange(700, 790).remainder(251)));
  CHECK(at::equal(target.reshape(-1), at::arange(701, 791).remainder(251)));
  const auto [tested, after] = all_of(data, RunningStage::test);
  CHECK(at::equal(tested.reshape(-1), at::arange(800, 990).remainder(251)));
  CHECK(at::equal(after.reshape(-1), at::arange(801, 991).remainder(251)));
  CHECK(data.loaders(RunningStage::predict)[0]->samples() == 19);
  CHECK_FALSE(data.loaders(RunningStage::validate)[0]->shuffles());
}

TEST_CASE("random windows begin anywhere in the training part, again each epoch") {
  File file(counted());
  file.options.samples_per_epoch = int64_t{4000};
  const auto made = file.made();
  TextDataModule& data = *made;
  const auto [input, target] = all_of(data, RunningStage::train);
  REQUIRE(input.size(0) == 4000);
  CHECK(at::equal(target.narrow(1, 0, 9), input.narrow(1, 1, 9)));
  CHECK(at::equal(target.select(1, 9), input.select(1, 0).add(10).remainder(251)));
  // All 690 beginnings, in [0, 690): by byte, those of [0, 690) modulo 251 are all 251.
  std::set<int64_t> begins;
  for (const int64_t first : first_tokens(input)) begins.insert(first);
  CHECK(begins.size() == 251);
  CHECK(at::equal(input, all_of(data, RunningStage::train).first));
  CHECK_FALSE(at::equal(input, all_of(data, RunningStage::train, 1).first));
  CHECK_FALSE(at::equal(input, all_of(data, RunningStage::train, 0, 2).first));
  file.options.samples_per_epoch = {};
  CHECK(file.made()->loaders(RunningStage::train)[0]->samples() == 69);
}

TEST_CASE("random windows reach the first and the last token of their part, and none after it") {
  File file("abcdefghijklmnopqrstuvwxyz", TextDataModule::Tokens::characters);
  file.options.block_size = 3;
  file.options.val_fraction = 0;
  file.options.test_fraction = 13.0 / 26;
  file.options.samples_per_epoch = int64_t{500};
  const auto made = file.made();
  TextDataModule& data = *made;
  const auto [input, target] = all_of(data, RunningStage::train);
  std::set<int64_t> begins;
  for (const int64_t first : first_tokens(input)) begins.insert(first);
  CHECK(begins == std::set<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  CHECK(target.max().item<int64_t>() == 12);
  CHECK(data.loaders(RunningStage::validate).empty());
}

TEST_CASE("strided windows come once each, in a new order each epoch") {
  File file(counted());
  file.options.windows = TextDataModule::Windows::strided;
  file.options.val_fraction = 0.55;  // 250 tokens to train on: bytes are places
  const auto made = file.made();
  TextDataModule& data = *made;
  auto begins = first_tokens(all_of(data, RunningStage::train).first);
  CHECK(begins.size() == 24);
  CHECK_FALSE(std::is_sorted(begins.begin(), begins.end()));
  CHECK(begins != first_tokens(all_of(data, RunningStage::train, 1).first));
  std::sort(begins.begin(), begins.end());
  for (size_t i = 0; i < begins.size(); ++i) CHECK(begins[i] == static_cast<int64_t>(10 * i));
  file.options.stride = int64_t{1};
  CHECK(file.made()->loaders(RunningStage::train)[0]->samples() == 240);
}

TEST_CASE("the vocabulary of a text is a fact, and goes into the checkpoint") {
  const std::string text = "abca bcab cabc abca bcab cabc abca bcab cabc";
  File file(text, TextDataModule::Tokens::characters);
  file.options.block_size = 2;
  const auto made = file.made();
  TextDataModule& data = *made;
  CHECK(data.exported_values().at("vocab_size").as_int() == 4);
  CHECK(data.exported_values().at("block_size").as_int() == 2);
  CHECK(data.exported_values().at("vocabulary").as_string() == " abc");
  const Tensor before = all_of(data, RunningStage::validate).first;
  CHECK(data.vocabulary().decode(before) == text.substr(31, 2));  // 44 characters: 31, 4 and 9

  // A checkpoint whose text had more characters: from now on its numbers.
  const auto loaders = data.loaders(RunningStage::validate);
  data.load_state(StateTree::map({{"vocabulary", " Zabcd"}}));
  CHECK(data.exported_values().at("vocab_size").as_int() == 6);
  const Tensor after = all_of(data, RunningStage::validate).first;
  CHECK_FALSE(at::equal(before, after));
  CHECK(data.vocabulary().decode(after) == text.substr(31, 2));
  Batch batch;
  loaders[0]->start_epoch(0);
  REQUIRE(loaders[0]->next(batch));
  CHECK(at::equal(batch["input"], after.narrow(0, 0, batch["input"].size(0))));
  CHECK_THAT(message_of<CheckpointError>([&] {
               data.load_state(StateTree::map({{"vocabulary", "ab"}}));
             }),
             ContainsSubstring("must not have characters missing from the checkpoint's vocabulary"));
  CHECK_THAT(message_of<CheckpointError>([&] {
               data.load_state(StateTree::map({{"vocabulary", ""}}));
             }),
             ContainsSubstring("the checkpoint (byte); got char"));
  File bytes(counted());
  const auto made_by_bytes = bytes.made();
  TextDataModule& by_bytes = *made_by_bytes;
  CHECK(by_bytes.exported_values().at("vocab_size").as_int() == 256);
  CHECK_THROWS_AS(by_bytes.load_state(StateTree::map({{"vocabulary", "ab"}})), CheckpointError);
  by_bytes.load_state(by_bytes.state());
}

TEST_CASE("a vocabulary that is loaded before setup is that of the text, whatever characters the text has") {
  const std::string text = "abca bcab cabc abca bcab cabc abca bcab cabc";
  File file(text, TextDataModule::Tokens::characters);
  file.options.block_size = 2;
  TextDataModule data(file.options);
  data.load_state(StateTree::map({{"vocabulary", " Zabcd"}}));
  data.setup(TrainerFn::test);
  CHECK(data.exported_values().at("vocab_size").as_int() == 6);
  CHECK(data.vocabulary().decode(all_of(data, RunningStage::validate).first) == text.substr(31, 2));
  TextDataModule lacking(file.options);
  lacking.load_state(StateTree::map({{"vocabulary", "ab"}}));
  CHECK_THAT(message_of<CheckpointError>([&] { lacking.setup(TrainerFn::test); }),
             ContainsSubstring("must not have characters missing from the checkpoint's vocabulary"));
  TextDataModule of_characters(file.options);
  CHECK_THAT(message_of<CheckpointError>([&] {
               of_characters.load_state(StateTree::map({{"vocabulary", ""}}));
             }),
             ContainsSubstring("the checkpoint (byte); got char"));
}

TEST_CASE("texts that cannot be used are named") {
  File file(counted());
  const auto error = [&] { return message_of<DataError>([&] { file.made(); }); };
  write_text(file.folder / "text.txt", "");
  CHECK_THAT(error(), ContainsSubstring("must not be empty") && ContainsSubstring("text.txt"));
  write_text(file.folder / "text.txt", std::string(50, 'x'));
  CHECK_THAT(error(), ContainsSubstring("block_size + 1 = 11 tokens; the part for validation has 5 of the file's 50"));
  file.options.val_fraction = file.options.test_fraction = 0;
  CHECK_NOTHROW(file.made());
  file.options.block_size = 50;
  CHECK_THAT(error(), ContainsSubstring("the part for training has 50"));
  file.options.tokens = TextDataModule::Tokens::characters;
  write_text(file.folder / "text.txt", "\xff\xfe not UTF-8");
  CHECK_THAT(error(), ContainsSubstring("must be UTF-8"));
  file.options.path = file.folder / "nothing.txt";
  CHECK_THAT(error(), ContainsSubstring("nothing.txt' cannot be opened: No such file or directory"));
  file.options.path = file.folder.path();
  CHECK_THAT(error(), ContainsSubstring("is a folder"));
}

TEST_CASE("options of a text that contradict each other are named") {
  const File file(counted());
  const auto error = [&](auto change) {
    auto options = file.options;
    change(options);
    return message_of<ConfigError>([&] { TextDataModule data(options); });
  };
  CHECK_THAT(error([](auto& o) { o.path.clear(); }), ContainsSubstring("path must name a text file"));
  CHECK_THAT(error([](auto& o) { o.val_fraction = 0.8; }), ContainsSubstring("leave something to train on"));
  CHECK_THAT(error([](auto& o) { o.stride = int64_t{3}; }), ContainsSubstring("Set windows to strided"));
  CHECK_THAT(error([](auto& o) {
               o.windows = TextDataModule::Windows::strided;
               o.samples_per_epoch = int64_t{3};
             }),
             ContainsSubstring("Set windows to random"));
}

TEST_CASE("tinyshakespeare has its known vocabulary") {
  const char* trial = std::getenv("FULGUR_TRIAL_DATA");
  if (trial == nullptr || !std::filesystem::exists(std::filesystem::path(trial) / "tinyshakespeare"))
    SKIP("FULGUR_TRIAL_DATA names no folder with tinyshakespeare/");
  TextDataModule::Options options;
  options.path = std::filesystem::path(trial) / "tinyshakespeare" / "input.txt";
  TextDataModule data(options);
  data.setup(TrainerFn::fit);
  CHECK(data.exported_values().at("vocab_size").as_int() == 65);
  CHECK(data.loaders(RunningStage::train)[0]->samples() == (1115394 - 111539 - 1) / 128);
  CHECK(data.loaders(RunningStage::validate)[0]->samples() == (111539 - 1) / 128);
  CHECK(data.vocabulary().decode(all_of(data, RunningStage::validate).first[0]).starts_with("\n\nGREMIO:\n"));
}

}  // namespace text_data_module_test
