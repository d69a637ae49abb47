#include "fulgur/text/token_files_data_module.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>

#include <algorithm>
#include <set>

#include "fulgur/core/text/errors.h"
#include "fulgur/text/token_files.h"
#include "support/expect_error.h"
#include "support/temporary_folder.h"

namespace token_files_data_module_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using test::message_of;
using test::TemporaryFolder;
using test::write_text;
using Module = TokenFilesDataModule;
using Windows = TokenFilesDataModule::Windows;
using Row = std::vector<int64_t>;

namespace {

std::shared_ptr<const Tokenizer> fixture(const std::string& name = "bpe") {
  return read_tokenizer(std::filesystem::path(FULGUR_TOKENIZER_FIXTURES) / (name + ".json"));
}

/// A folder of tokens of a text with <|endoftext|> between its documents.
std::filesystem::path make_tokens(const TemporaryFolder& folder, const std::string& name, const std::string& text,
                                  double val_fraction = 0) {
  write_text(folder / (name + ".txt"), text);
  write_token_files({.inputs = {folder / (name + ".txt")}, .separator = "<|endoftext|>"}, *fixture(), folder / name,
                    val_fraction);
  return folder / name;
}

Row tokens_of(const std::filesystem::path& path) {
  const TokenFiles files(path);
  Row tokens(static_cast<size_t>(files.info().tokens));
  files.read(0, files.info().tokens, tokens.data());
  return tokens;
}

std::string digits(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += static_cast<char>('0' + i * 7 % 10);
  return text;
}

struct Epoch {
  std::vector<Row> input, target;
};

Row row_of(const Tensor& batch, int64_t row) {
  const Tensor one = batch.select(0, row).contiguous();
  return {one.const_data_ptr<int64_t>(), one.const_data_ptr<int64_t>() + one.numel()};
}

void append(Epoch& all, const Batch& batch) {
  CHECK(batch["input"].scalar_type() == at::kLong);
  CHECK(batch["target"].scalar_type() == at::kLong);
  for (int64_t i = 0; i < batch.size(); ++i) {
    all.input.push_back(row_of(batch["input"], i));
    all.target.push_back(row_of(batch["target"], i));
  }
}

Epoch epoch_of(DataModule& data, RunningStage stage, int64_t epoch = 0, uint64_t seed = 1, int64_t rank = 0,
               int64_t world_size = 1) {
  const auto loaders = data.loaders(stage);
  REQUIRE(loaders.size() == 1);
  loaders[0]->configure(seed, rank, world_size);
  loaders[0]->start_epoch(epoch);
  Epoch all;
  for (Batch batch; loaders[0]->next(batch);) append(all, batch);
  return all;
}

std::unique_ptr<Module> made(const Module::Options& options) {
  auto data = std::make_unique<Module>(options);
  data->setup(TrainerFn::fit);
  return data;
}

Module::Options options_for(std::vector<std::filesystem::path> paths, int64_t block, Windows windows) {
  Module::Options options;
  options.paths = std::move(paths);
  options.block_size = block;
  options.windows = windows;
  options.batch_size = 4;
  return options;
}

}  // namespace

TEST_CASE("packed windows cover each token once, and the last one is filled up with ignored targets") {
  const TemporaryFolder folder;
  const auto path = make_tokens(folder, "t", digits(40));
  const Row tokens = tokens_of(path);
  const int64_t block = 7;
  const auto data = made(options_for({path}, block, Windows::packed));
  const Epoch epoch = epoch_of(*data, RunningStage::train);
  const auto count = static_cast<int64_t>(tokens.size());
  REQUIRE(static_cast<int64_t>(epoch.input.size()) == (count - 1 + block - 1) / block);
  std::vector<std::pair<Row, Row>> got, expected;
  for (size_t i = 0; i < epoch.input.size(); ++i) got.emplace_back(epoch.input[i], epoch.target[i]);
  for (int64_t begin = 0; begin + 1 < count; begin += block) {
    Row input(static_cast<size_t>(block), 0), target(static_cast<size_t>(block), -100);
    for (int64_t i = 0; i < block && begin + i + 1 < count; ++i) {
      input[static_cast<size_t>(i)] = tokens[static_cast<size_t>(begin + i)];
      target[static_cast<size_t>(i)] = tokens[static_cast<size_t>(begin + i + 1)];
    }
    expected.emplace_back(input, target);
  }
  CHECK(got != expected);  // shuffled
  std::sort(got.begin(), got.end());
  std::sort(expected.begin(), expected.end());
  CHECK(got == expected);
  CHECK(epoch_of(*data, RunningStage::train).input == epoch.input);
  CHECK(epoch_of(*data, RunningStage::train, 1).input != epoch.input);
}

TEST_CASE("random windows start anywhere, as a function of seed, epoch and index") {
  const TemporaryFolder folder;
  const auto path = make_tokens(folder, "t", digits(30));
  const Row tokens = tokens_of(path);
  Module::Options options = options_for({path}, 5, Windows::random);
  options.samples_per_epoch = int64_t{2000};
  const auto data = made(options);
  const Epoch epoch = epoch_of(*data, RunningStage::train);
  REQUIRE(epoch.input.size() == 2000);
  std::set<Row> seen, possible;
  for (size_t begin = 0; begin + 5 < tokens.size(); ++begin) {
    const auto at = tokens.begin() + static_cast<std::ptrdiff_t>(begin);
    possible.insert(Row(at, at + 6));
  }
  for (size_t i = 0; i < epoch.input.size(); ++i) {
    Row all = epoch.input[i];
    all.push_back(epoch.target[i].back());
    CHECK(std::equal(all.begin() + 1, all.end(), epoch.target[i].begin()));
    seen.insert(all);
  }
  CHECK(seen == possible);
  CHECK(epoch_of(*data, RunningStage::train).input == epoch.input);
  CHECK(epoch_of(*data, RunningStage::train, 1).input != epoch.input);
  CHECK(epoch_of(*data, RunningStage::train, 0, 2).input != epoch.input);
  options.samples_per_epoch = {};
  CHECK(made(options)->loaders(RunningStage::train)[0]->samples() == (static_cast<int64_t>(tokens.size()) - 2) / 5 + 1);
}

TEST_CASE("targets in the next document are ignored without cross_documents") {
  const TemporaryFolder folder;
  const auto path = make_tokens(folder, "t", "123<|endoftext|>4567<|endoftext|>89");
  for (const Windows windows : {Windows::packed, Windows::random}) {
    Module::Options options = options_for({path}, 4, windows);
    if (windows == Windows::random) options.samples_per_epoch = int64_t{50};
    for (const bool cross : {true, false}) {
      options.cross_documents = cross;
      const Epoch epoch = epoch_of(*made(options), RunningStage::train);
      size_t ignored = 0;
      for (size_t row = 0; row < epoch.input.size(); ++row)
        for (size_t i = 0; i < 4; ++i) {
          const bool ends = epoch.input[row][i] == 0;  // the separator, which is the last token of a document
          const bool is_ignored = epoch.target[row][i] == -100;
          ignored += is_ignored ? 1 : 0;
          if (ends && !cross) CHECK(is_ignored);
          if (!ends && i < 3 && windows == Windows::random) CHECK_FALSE(is_ignored);
        }
      if (windows == Windows::random) CHECK((ignored > 0) == !cross);
    }
  }
}

TEST_CASE("the ranks together have the windows of one rank, with any number of workers, and a resume is exact") {
  const TemporaryFolder folder;
  const auto first = make_tokens(folder, "a", digits(60)), second = make_tokens(folder, "b", "x y z " + digits(50));
  for (const bool weighted : {false, true})
    for (const Windows windows : {Windows::random, Windows::packed}) {
      Module::Options options = options_for({first, second}, 6, windows);
      if (weighted) options.weights = {1, 3};
      const Epoch one = epoch_of(*made(options), RunningStage::train, 3);
      for (size_t rank = 0; rank < 2; ++rank) {
        const Epoch part = epoch_of(*made(options), RunningStage::train, 3, 1, static_cast<int64_t>(rank), 2);
        for (size_t i = 0; i < part.input.size(); ++i) CHECK(part.input[i] == one.input[(2 * i + rank)]);
      }
      options.loading.num_workers = int64_t{2};
      CHECK(epoch_of(*made(options), RunningStage::train, 3).input == one.input);
      const auto stopped = made(options), resumed = made(options);
      const auto before = stopped->loaders(RunningStage::train)[0], after = resumed->loaders(RunningStage::train)[0];
      Batch batch;
      before->configure(1, 0, 1);
      before->start_epoch(3);
      Epoch all;
      REQUIRE(before->next(batch));
      append(all, batch);
      after->configure(1, 0, 1);
      after->load_state(before->state());
      after->start_epoch(3);
      while (after->next(batch)) append(all, batch);
      CHECK(all.input == one.input);
      CHECK(all.target == one.target);
    }
}

TEST_CASE("several folders are mixed by weight") {
  const TemporaryFolder folder;
  const auto small = make_tokens(folder, "a", std::string(20, '1')), large = make_tokens(folder, "b", digits(500));
  const auto share_of_small = [&](std::vector<double> weights, Windows windows) {
    Module::Options options = options_for({small, large}, 4, windows);
    options.weights = std::move(weights);
    options.samples_per_epoch = int64_t{4000};
    const Epoch epoch = epoch_of(*made(options), RunningStage::train);
    REQUIRE(epoch.input.size() == 4000);
    return static_cast<double>(std::ranges::count_if(epoch.input, [](const Row& row) { return row[0] == row[1]; })) /
           4000;
  };
  const double equal = share_of_small({1, 1}, Windows::packed);
  CHECK(equal > 0.35);
  CHECK(equal < 0.55);
  CHECK(share_of_small({3, 1}, Windows::packed) > 0.55);
  CHECK(share_of_small({0, 1}, Windows::packed) == 0);
  CHECK(share_of_small({1, 0}, Windows::random) > 0.7);
  CHECK(share_of_small({}, Windows::random) < 0.1);
}

TEST_CASE("validation windows are packed, in order, and of the validation parts only") {
  const TemporaryFolder folder;
  const auto path = make_tokens(folder, "t", digits(100), 0.2);
  const Row tokens = tokens_of(path);
  const TokenFiles files(path);
  const auto data = made(options_for({path}, 8, Windows::random));
  const Epoch epoch = epoch_of(*data, RunningStage::validate);
  const auto begin = static_cast<size_t>(files.info().train_tokens);
  REQUIRE(tokens.size() - begin > 9);
  CHECK(epoch.input[0] == Row(tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                              tokens.begin() + static_cast<std::ptrdiff_t>(begin) + 8));
  CHECK(epoch.input.size() == (tokens.size() - begin - 2) / 8 + 1);
  CHECK(data->loaders(RunningStage::test).empty());
  const auto whole = make_tokens(folder, "w", digits(100));
  CHECK(made(options_for({whole}, 8, Windows::random))->loaders(RunningStage::validate).empty());
  const Epoch training = epoch_of(*data, RunningStage::train);
  for (const Row& row : training.target) CHECK(row.size() == 8);
}

TEST_CASE("the module exports sizes, and its state names the tokenizer") {
  const TemporaryFolder folder;
  const auto path = make_tokens(folder, "t", digits(40));
  const auto data = made(options_for({path}, 8, Windows::random));
  CHECK(data->exported_values().at("vocab_size").as_int() == 700);
  CHECK(data->exported_values().at("block_size").as_int() == 8);
  CHECK(data->tokenizer()->fingerprint() == fixture()->fingerprint());
  const StateTree state = data->state();
  CHECK_NOTHROW(made(options_for({path}, 8, Windows::random))->load_state(state));
  const StateTree other = StateTree::map({{"tokenizer", "0123456789abcdef"}});
  CHECK_THROWS_AS(data->load_state(other), CheckpointError);
  CHECK(data->state().at("tokenizer").as_string() == state.at("tokenizer").as_string());
  Module early(options_for({path}, 8, Windows::random));
  early.load_state(other);
  CHECK_THAT(message_of<CheckpointError>([&] { early.setup(TrainerFn::fit); }), ContainsSubstring("0123456789abcdef"));
}

TEST_CASE("folders and options that do not fit are refused") {
  const TemporaryFolder folder;
  const auto path = make_tokens(folder, "t", digits(40));
  write_text(folder / "o.txt", "other text");
  write_token_files({.inputs = {folder / "o.txt"}}, *fixture("wordpiece"), folder / "o");
  const auto refused = [](const Module::Options& options) {
    return message_of<ConfigError>([&] { const Module data(options); });
  };
  Module::Options options = options_for({path}, 8, Windows::random);
  options.weights = {1, 2};
  CHECK_THAT(refused(options), ContainsSubstring("1 folder"));
  options.weights = {0};
  CHECK_THAT(refused(options), ContainsSubstring("above 0"));
  options.weights = {-1};
  CHECK_THAT(refused(options), ContainsSubstring("at least 0"));
  options = options_for({path}, 8, Windows::packed);
  options.samples_per_epoch = int64_t{5};
  CHECK_THAT(refused(options), ContainsSubstring("samples_per_epoch"));
  CHECK_THAT(refused(options_for({}, 8, Windows::packed)), ContainsSubstring("paths"));
  CHECK_THAT(message_of<DataError>([&] {
               made(options_for({path, folder / "o"}, 2, Windows::random));
             }),
             ContainsSubstring("same tokenizer"));
  CHECK_THAT(message_of<DataError>([&] { made(options_for({path}, 1000, Windows::random)); }),
             ContainsSubstring("1001 tokens"));
  CHECK_THROWS_AS(made(options_for({folder / "none"}, 8, Windows::random)), DataError);
}

TEST_CASE("checksums are compared on request") {
  const TemporaryFolder folder;
  const auto path = make_tokens(folder, "t", digits(40));
  std::string bytes = test::read_text(path / "tokens.bin");
  bytes[4] = static_cast<char>(bytes[4] ^ 1);
  write_text(path / "tokens.bin", bytes);
  Module::Options options = options_for({path}, 8, Windows::random);
  CHECK_NOTHROW(made(options));
  options.verify = true;
  CHECK_THAT(message_of<DataError>([&] { made(options); }), ContainsSubstring("checksum"));
}

}  // namespace token_files_data_module_test
