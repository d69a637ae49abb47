#include "fulgur/text/prompts_data_module.h"

#include <ATen/ops/tensor.h>

#include "fulgur/core/text/errors.h"
#include "support/expect_error.h"
#include "support/temporary_folder.h"

namespace prompts_data_module_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using test::message_of;
using test::TemporaryFolder;
using test::write_text;
using Row = std::vector<int64_t>;

namespace {

const std::filesystem::path kFixtures = FULGUR_TOKENIZER_FIXTURES;

struct PromptFile {
  TemporaryFolder folder;
  PromptsDataModule::Options options;
  PromptFile(const std::string& name, const std::string& text, const std::string& tokenizer = "bpe") {
    write_text(folder / name, text);
    options.path = folder / name;
    options.tokenizer = kFixtures / (tokenizer + ".json");
  }
};

struct Prompt {
  Row tokens;
  int64_t index;
  bool operator==(const Prompt&) const = default;
};

std::vector<Prompt> prompts_of(const PromptsDataModule::Options& options, int64_t rank = 0, int64_t ranks = 1) {
  PromptsDataModule data(options);
  data.setup(TrainerFn::predict);
  const auto loaders = data.loaders(RunningStage::predict);
  REQUIRE(loaders.size() == 1);
  loaders[0]->configure(1, rank, ranks);
  loaders[0]->start_epoch(0);
  std::vector<Prompt> prompts;
  for (Batch batch; loaders[0]->next(batch);) {
    const Tensor tokens = batch[0], mask = batch["mask"], index = batch["index"];
    REQUIRE(tokens.sizes() == mask.sizes());
    CHECK(mask.any(0).all().item<bool>());  // no wider than the longest prompt
    for (int64_t i = 0; i < tokens.size(0); ++i) {
      Row row;
      for (int64_t k = 0; k < tokens.size(1); ++k)
        if (mask[i][k].item<bool>()) row.push_back(tokens[i][k].item<int64_t>());
      // Padding comes after the tokens.
      CHECK(mask[i].narrow(0, 0, static_cast<int64_t>(row.size())).all().item<bool>());
      prompts.push_back({row, index[i].item<int64_t>()});
    }
  }
  return prompts;
}

Row ids_of(const std::string& text, bool special = true, const std::string& tokenizer = "bpe") {
  const auto read = read_tokenizer(kFixtures / (tokenizer + ".json"));
  std::vector<int32_t> ids = read->encode(text);
  if (special) ids = read->with_special_tokens(std::move(ids));
  return {ids.begin(), ids.end()};
}

}  // namespace

TEST_CASE("prompts are the lines of a file in their order, for any batch size and number of workers") {
  PromptFile file("prompts.txt", "the time\n\nof the first, they\r\na\nnow about it");
  const std::vector<Prompt> expected = {
      {ids_of("the time"), 0}, {ids_of("of the first, they"), 1}, {ids_of("a"), 2}, {ids_of("now about it"), 3}};
  for (const int64_t batch_size : {int64_t{1}, int64_t{3}, int64_t{16}})
    for (const int64_t workers : {int64_t{0}, int64_t{2}}) {
      file.options.batch_size = batch_size;
      file.options.loading.num_workers = workers;
      CHECK((prompts_of(file.options) == expected));
    }
  // Two ranks read all prompts once, under the same indices.
  std::vector<Prompt> of_ranks(4);
  for (const int64_t rank : {int64_t{0}, int64_t{1}})
    for (const Prompt& prompt : prompts_of(file.options, rank, 2))
      of_ranks.at(static_cast<size_t>(prompt.index)) = prompt;
  CHECK((of_ranks == expected));
}

TEST_CASE("prompts of JSON lines may have several lines, and each prompt several samples") {
  PromptFile file("prompts.jsonl", "{\"start\": \"the\\ntime\"}\n \n{\"start\": \"a\", \"more\": 1}\n");
  file.options.text_field = "start";
  file.options.samples_per_prompt = 2;
  const Row first = ids_of("the\ntime"), second = ids_of("a");
  CHECK((prompts_of(file.options) == std::vector<Prompt>{{first, 0}, {first, 1}, {second, 2}, {second, 3}}));
}

TEST_CASE("prompts have the tokenizer's special tokens unless they are switched off") {
  PromptFile file("prompts.txt", "the time", "wordpiece");
  CHECK((prompts_of(file.options)[0].tokens == ids_of("the time", true, "wordpiece")));
  file.options.special_tokens = false;
  CHECK((prompts_of(file.options)[0].tokens == ids_of("the time", false, "wordpiece")));
  CHECK(ids_of("the time", true, "wordpiece").size() == ids_of("the time", false, "wordpiece").size() + 2);
}

TEST_CASE("prompts are for predict only, and need the tokenizer of the checkpoint") {
  const PromptFile file("prompts.txt", "the time");
  PromptsDataModule data(file.options);
  data.setup(TrainerFn::predict);
  for (const RunningStage stage : {RunningStage::train, RunningStage::validate, RunningStage::test})
    CHECK(data.loaders(stage).empty());
  CHECK(data.exported_values().at("vocab_size").as_int() == data.tokenizer()->vocab_size());
  PromptsDataModule same(file.options);
  same.load_state(data.state());
  same.setup(TrainerFn::predict);
  const PromptFile other("prompts.txt", "the time", "wordpiece");
  PromptsDataModule different(other.options);
  different.load_state(data.state());
  CHECK_THAT(message_of<CheckpointError>([&] { different.setup(TrainerFn::predict); }),
             ContainsSubstring(data.tokenizer()->fingerprint()));
  CHECK_THROWS_AS(data.load_state(StateTree::map({{"tokenizer", std::string("0123456789abcdef")}})), CheckpointError);
  CHECK(data.state().at("tokenizer").as_string() == data.tokenizer()->fingerprint());
}

TEST_CASE("without a tokenizer, prompts have the vocabulary of the checkpoint") {
  PromptFile file("prompts.txt", "ab\nba\u00e9");
  file.options.tokenizer.reset();
  PromptsDataModule characters(file.options);
  characters.load_state(StateTree::map({{"vocabulary", std::string("ab\u00e9")}}));
  characters.setup(TrainerFn::predict);
  CHECK(characters.tokenizer() == nullptr);
  CHECK(characters.exported_values().at("vocab_size").as_int() == 3);
  PredictedRow row{.loader_idx = 0, .row = 1, .values = {{"generated", at::tensor({2, 0, -1}, at::kLong)}}};
  CHECK((characters.prediction_texts(row) == PredictionTexts{{"prompt", "ba\u00e9"}, {"text", "ba\u00e9\u00e9a"}}));
  row.values = {{"prediction", at::tensor({1}, at::kLong)}};
  CHECK((characters.prediction_texts(row) == PredictionTexts{{"prompt", "ba\u00e9"}}));
  PromptsDataModule bytes(file.options);
  bytes.load_state(StateTree::map({{"vocabulary", std::string()}}));
  bytes.setup(TrainerFn::predict);
  CHECK(bytes.exported_values().at("vocab_size").as_int() == 256);

  PromptsDataModule lacks(file.options);
  lacks.load_state(StateTree::map({{"vocabulary", std::string("ab")}}));
  CHECK_THAT(message_of<DataError>([&] { lacks.setup(TrainerFn::predict); }), ContainsSubstring("line 2"));
  PromptsDataModule none(file.options);
  CHECK_THAT(message_of<ConfigError>([&] { none.setup(TrainerFn::predict); }), ContainsSubstring("--ckpt_path"));
  PromptFile both("prompts.txt", "ab");
  PromptsDataModule refused(both.options);
  CHECK_THAT(message_of<ConfigError>([&] {
               refused.load_state(StateTree::map({{"vocabulary", std::string("ab")}}));
             }),
             ContainsSubstring("Remove data.init_args.tokenizer"));
}

TEST_CASE("a line of predictions has the prompt, and the text that continues it") {
  PromptFile file("prompts.txt", "the time\nof the first");
  file.options.samples_per_prompt = 2;
  PromptsDataModule data(file.options);
  data.setup(TrainerFn::predict);
  const Row more = ids_of(" of it", false);
  PredictedRow row{.loader_idx = 0, .row = 1, .values = {{"generated", at::tensor(more, at::kLong)}}};
  CHECK((data.prediction_texts(row) == PredictionTexts{{"prompt", "the time"}, {"text", "the time of it"}}));
  row.row = 2;
  CHECK(data.prediction_texts(row).front().second == "of the first");
  // Of several ranks that read all prompts, the second one begins again.
  row.row = 5;
  CHECK(data.prediction_texts(row).empty());
  row.values.add("index", at::tensor(1, at::kLong));
  CHECK((data.prediction_texts(row) == PredictionTexts{{"prompt", "the time"}, {"text", "the time of it"}}));
  row.values = {{"index", at::tensor(3, at::kLong)}};
  CHECK((data.prediction_texts(row) == PredictionTexts{{"prompt", "of the first"}}));
  row.values = {{"index", at::tensor(-1, at::kLong)}};
  CHECK(data.prediction_texts(row).empty());
}

TEST_CASE("files of prompts that cannot be used are named with their lines") {
  const auto message = [](const std::string& name, const std::string& text) {
    const PromptFile file(name, text);
    return message_of<DataError>([&] { PromptsDataModule(file.options).setup(TrainerFn::predict); });
  };
  CHECK_THAT(message("a.txt", "\n\n"), ContainsSubstring("must have a prompt"));
  CHECK_THAT(message("a.txt", "the\xff"), ContainsSubstring("UTF-8"));
  CHECK_THAT(message("a.jsonl", "{\"text\": \"the\"}\n{\"text\": 3}\n"), ContainsSubstring("line 2"));
  CHECK_THAT(message("a.jsonl", "{\"text\": \"the\"\n"), ContainsSubstring("line 1"));
  CHECK_THAT(message("a.jsonl", "{\"text\": \"\"}\n"), ContainsSubstring("must have a token"));
  PromptFile file("a.txt", "the");
  file.options.path = file.folder / "gone.txt";
  CHECK_THAT(message_of<DataError>([&] { PromptsDataModule(file.options).setup(TrainerFn::predict); }),
             ContainsSubstring("gone.txt"));
  file.options.path.clear();
  CHECK_THROWS_AS(PromptsDataModule(file.options), ConfigError);
  file.options.path = "a.txt";
  file.options.samples_per_prompt = 0;
  CHECK_THAT(message_of<ConfigError>([&] { PromptsDataModule data(file.options); }),
             ContainsSubstring("samples_per_prompt"));
}

}  // namespace prompts_data_module_test
