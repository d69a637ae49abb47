#include "fulgur/text/labelled_text_data_module.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <set>

#include "fulgur/core/text/errors.h"
#include "support/expect_error.h"
#include "support/temporary_folder.h"

namespace labelled_text_data_module_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using test::message_of;
using test::TemporaryFolder;
using test::write_text;
using Module = LabelledTextDataModule;
using Row = std::vector<int64_t>;

namespace {

const std::filesystem::path kTokenizer = std::filesystem::path(FULGUR_TOKENIZER_FIXTURES) / "wordpiece.json";

Row ids_of(const std::string& text, size_t max_length = 128) {
  const auto tokenizer = read_tokenizer(kTokenizer);
  std::vector<int32_t> ids = tokenizer->encode(text);
  if (ids.size() > max_length - 2) ids.resize(max_length - 2);
  ids = tokenizer->with_special_tokens(std::move(ids));
  return {ids.begin(), ids.end()};
}

struct Files {
  TemporaryFolder folder;
  Module::Options options;
  explicit Files(const std::string& name = "a.csv",
                 const std::string& text = "label,text\nspam,the time\nham,\"about, now\"\nspam,first\nham,they\n") {
    write_text(folder / name, text);
    options.path = folder / name;
    options.tokenizer = kTokenizer;
    options.val_fraction = 0;
    options.batch_size = 4;
  }
  std::unique_ptr<Module> made() const {
    auto data = std::make_unique<Module>(options);
    data->setup(TrainerFn::fit);
    return data;
  }
};

/// Rows without padding, and their labels, of an epoch.
std::vector<std::pair<Row, int64_t>> all_of(DataModule& data, RunningStage stage) {
  const auto loaders = data.loaders(stage);
  REQUIRE(loaders.size() == 1);
  loaders[0]->configure(1, 0, 1);
  loaders[0]->start_epoch(0);
  std::vector<std::pair<Row, int64_t>> rows;
  for (Batch batch; loaders[0]->next(batch);) {
    const Tensor tokens = batch["tokens"], mask = batch["mask"], label = batch["label"];
    CHECK(tokens.scalar_type() == at::kLong);
    CHECK(mask.scalar_type() == at::kBool);
    CHECK(label.scalar_type() == at::kLong);
    REQUIRE(tokens.sizes() == mask.sizes());
    for (int64_t i = 0; i < tokens.size(0); ++i) {
      Row row;
      for (int64_t k = 0; k < tokens.size(1); ++k) {
        const bool is_token = mask.const_data_ptr<bool>()[i * tokens.size(1) + k];
        const int64_t token = tokens.const_data_ptr<int64_t>()[i * tokens.size(1) + k];
        if (is_token)
          row.push_back(token);
        else
          CHECK(token == 0);  // [PAD]
      }
      rows.emplace_back(row, label.const_data_ptr<int64_t>()[i]);
    }
  }
  return rows;
}

Batch first_batch(DataModule& data, RunningStage stage = RunningStage::train) {
  const auto loaders = data.loaders(stage);
  REQUIRE(loaders.size() == 1);
  loaders[0]->configure(1, 0, 1);
  loaders[0]->start_epoch(0);
  Batch batch;
  REQUIRE(loaders[0]->next(batch));
  return batch;
}

std::vector<std::string> names_of(const StateTree& list) {
  std::vector<std::string> names;
  for (const StateTree& name : list.as_list()) names.push_back(name.as_string());
  return names;
}

}  // namespace

TEST_CASE("texts of CSV and JSON lines become padded tokens, a mask and labels") {
  const std::vector<std::pair<Row, int64_t>> expected{
      {ids_of("the time"), 1}, {ids_of("about, now"), 0}, {ids_of("first"), 1}, {ids_of("they"), 0}};
  const Files csv,
      json("a.jsonl",
           "{\"text\":\"the time\",\"label\":\"spam\"}\n{\"label\":\"ham\",\"text\":\"about, now\",\"x\":1}\n\n"
           "{\"text\":\"first\",\"label\":\"spam\"}\r\n{\"text\":\"they\",\"label\":\"ham\"}");
  for (const Files* files : {&csv, &json}) {
    const auto data = files->made();
    CHECK(data->classes() == std::vector<std::string>{"ham", "spam"});
    auto rows = all_of(*data, RunningStage::train), sorted = expected;
    std::sort(rows.begin(), rows.end());
    std::sort(sorted.begin(), sorted.end());
    CHECK(rows == sorted);
    CHECK(data->loaders(RunningStage::validate).empty());
    CHECK(data->loaders(RunningStage::test).empty());
  }
}

TEST_CASE("labels that are numbers are sorted as numbers") {
  const Files files("a.jsonl",
                    "{\"text\":\"the\",\"label\":10}\n{\"text\":\"of\",\"label\":9}\n{\"text\":\"and\",\"label\":-1}");
  const auto data = files.made();
  CHECK(data->classes() == std::vector<std::string>{"-1", "9", "10"});
  CHECK(data->exported_values().at("num_classes").as_int() == 3);
  CHECK(names_of(data->exported_values().at("classes")) == data->classes());
  CHECK(data->exported_values().at("vocab_size").as_int() == 535);
  CHECK(data->exported_values().at("max_length").as_int() == 128);
}

TEST_CASE("a number that is written in two ways is one class") {
  const auto lines = [](const std::vector<std::pair<std::string, std::string>>& rows) {
    std::string text;
    for (const auto& [word, label] : rows) text += R"({"text":")" + word + R"(","label":")" + label + "\"}\n";
    return text;
  };
  const Files files("a.jsonl", lines({{"the", "1"}, {"of", "01"}, {"and", "0"}}));
  const auto data = files.made();
  CHECK(data->classes() == std::vector<std::string>{"0", "1"});
  std::vector<std::pair<Row, int64_t>> expected{{ids_of("the"), 1}, {ids_of("of"), 1}, {ids_of("and"), 0}};
  auto rows = all_of(*data, RunningStage::train);
  std::sort(rows.begin(), rows.end());
  std::sort(expected.begin(), expected.end());
  CHECK(rows == expected);
  // Numbers that are written in one way keep it, and so do texts.
  CHECK(Files("a.jsonl", lines({{"the", "007"}, {"of", "3"}})).made()->classes() ==
        std::vector<std::string>{"3", "007"});
  CHECK(Files("a.jsonl", lines({{"the", "01"}, {"of", "001"}, {"and", "2"}})).made()->classes() ==
        std::vector<std::string>{"1", "2"});
  CHECK(Files("a.jsonl", lines({{"the", "1"}, {"of", "01"}, {"and", "x"}})).made()->classes() ==
        std::vector<std::string>{"01", "1", "x"});
}

TEST_CASE("batches are as long as their longest text, or max_length; texts are cut to it") {
  Files files("a.csv", "text,label\n\"the the the the the the the the\",a\nthe,b\n");
  CHECK(first_batch(*files.made())["tokens"].sizes() == at::IntArrayRef({2, 10}));
  files.options.padding = Module::Padding::max_length;
  files.options.max_length = 20;
  CHECK(first_batch(*files.made())["tokens"].sizes() == at::IntArrayRef({2, 20}));
  files.options.max_length = 5;
  const auto rows = all_of(*files.made(), RunningStage::train);
  const Row cut = ids_of("the the the the", 5);
  REQUIRE(cut.size() == 5);
  CHECK(std::ranges::any_of(rows, [&](const auto& row) { return row.first == cut; }));
  files.options.max_length = 2;  // of [CLS] and [SEP] alone
  CHECK_THAT(message_of<ConfigError>([&] { files.made(); }), ContainsSubstring("max_length"));
}

TEST_CASE("the token of padding can be chosen") {
  Files files("a.csv", "text,label\nthe the the,a\nthe,b\n");
  files.options.pad_token = std::string("[MASK]");
  const Batch batch = first_batch(*files.made());
  CHECK(batch["tokens"].max().item<int64_t>() >= 4);
  CHECK(batch["tokens"].eq(4).sum().item<int64_t>() == 2);
  files.options.pad_token = std::string("[none]");
  CHECK_THAT(message_of<ConfigError>([&] { files.made(); }), ContainsSubstring("[none]"));
}

TEST_CASE("a part of the texts is for validation, by split_seed") {
  std::string text = "text,label\n";
  for (int i = 0; i < 40; ++i) text += std::string(static_cast<size_t>(i + 1), '!') + ",a\n";
  Files files("a.csv", text);
  files.options.val_fraction = 0.25;
  const auto lengths = [&](RunningStage stage) {
    std::set<size_t> found;
    for (const auto& [row, label] : all_of(*files.made(), stage)) found.insert(row.size());
    return found;
  };
  const std::set<size_t> training = lengths(RunningStage::train), validation = lengths(RunningStage::validate);
  CHECK(training.size() == 30);
  CHECK(validation.size() == 10);
  std::set<size_t> all = training;
  all.insert(validation.begin(), validation.end());
  CHECK(all.size() == 40);
  CHECK(lengths(RunningStage::validate) == validation);
  files.options.split_seed = 1;
  CHECK(lengths(RunningStage::validate) != validation);
  files.options.val_path = files.options.path;
  CHECK(lengths(RunningStage::validate).size() == 40);
  CHECK(lengths(RunningStage::train).size() == 40);
}

TEST_CASE("a part for validation that would have no text is an error, if the verb uses it") {
  Files files;
  files.options.val_fraction = 0.1;  // of 4 rows
  CHECK_THAT(message_of<DataError>([&] { files.made(); }),
             ContainsSubstring("each part must have a text; path has 4 rows, of which val_fraction 0.1 takes 0"));
  Module data(files.options);
  CHECK_THROWS_AS(data.setup(TrainerFn::validate), DataError);
  CHECK_NOTHROW(data.setup(TrainerFn::test));
  CHECK_NOTHROW(data.setup(TrainerFn::predict));
  files.options.val_fraction = 0.25;
  CHECK(files.made()->loaders(RunningStage::validate).size() == 1);
  files.options.val_fraction = 0.1;
  files.options.val_path = files.options.path;
  CHECK(files.made()->loaders(RunningStage::validate).size() == 1);
}

TEST_CASE("other files have the classes of the training texts") {
  Files files;
  write_text(files.folder / "t.csv", "label,text\nspam,they\n");
  files.options.test_path = files.folder / "t.csv";
  CHECK(all_of(*files.made(), RunningStage::test) == std::vector<std::pair<Row, int64_t>>{{ids_of("they"), 1}});
  CHECK(files.made()->loaders(RunningStage::predict).size() == 1);
  write_text(files.folder / "t.csv", "label,text\nspam,they\neggs,they\n");
  CHECK_THAT(message_of<DataError>([&] { files.made(); }), ContainsSubstring("line 3 is 'eggs'"));
}

TEST_CASE("test may be a part of the texts, and predict a file without labels") {
  std::string text = "text,label\n";
  for (int i = 0; i < 40; ++i) text += std::string(static_cast<size_t>(i + 1), '!') + ",a\n";
  Files files("a.csv", text);
  files.options.val_fraction = 0.25;
  const auto validation = all_of(*files.made(), RunningStage::validate);
  files.options.test_fraction = 0.2;
  std::set<size_t> lengths;
  for (const RunningStage stage : {RunningStage::train, RunningStage::validate, RunningStage::test}) {
    const auto rows = all_of(*files.made(), stage);
    CHECK(rows.size() == (stage == RunningStage::train ? 22u : stage == RunningStage::validate ? 10u : 8u));
    for (const auto& [row, label] : rows) lengths.insert(row.size());
    if (stage == RunningStage::validate) CHECK(rows == validation);
  }
  CHECK(lengths.size() == 40);
  // Each text has a token more than the one before, so its number in the file follows from its length.
  const auto predicted = [&] {
    const auto loaders = files.made()->loaders(RunningStage::predict);
    REQUIRE(loaders.size() == 1);
    loaders[0]->configure(1, 0, 1);
    loaders[0]->start_epoch(0);
    std::vector<Batch> batches;
    for (Batch batch; loaders[0]->next(batch);) batches.push_back(batch);
    return batches;
  };
  int64_t count = 0;
  for (const Batch& batch : predicted())
    for (int64_t i = 0; i < batch.size(); ++i, ++count)
      CHECK(batch["mask"][i].sum().item<int64_t>() == batch["index"][i].item<int64_t>() + 3);
  CHECK(count == 8);
  write_text(files.folder / "p.jsonl", "{\"text\": \"they\"}\n{\"text\": \"about\"}\n");
  write_text(files.folder / "p.csv", "text\nthey\nabout\n");
  for (const char* name : {"p.jsonl", "p.csv"}) {
    files.options.predict_path = files.folder / name;
    const std::vector<Batch> batches = predicted();
    REQUIRE(batches.size() == 1);
    CHECK_FALSE(batches[0].contains("label"));
    CHECK(batches[0]["index"].equal(at::arange(2)));
  }
  files.options.test_path = files.options.path;
  CHECK_THAT(message_of<ConfigError>([&] { files.made(); }), ContainsSubstring("test_path and test_fraction"));
}

TEST_CASE("a checkpoint keeps the classes and the tokenizer") {
  Files files;
  const StateTree state = files.made()->state();
  CHECK(names_of(state.at("classes")) == std::vector<std::string>{"ham", "spam"});
  write_text(files.options.path, "label,text\nspam,they\n");
  {
    Module early(files.options);
    early.load_state(state);
    CHECK(names_of(early.state().at("classes")).size() == 2);
    early.setup(TrainerFn::test);
    CHECK(all_of(early, RunningStage::train)[0].second == 1);
    const auto late = files.made();
    CHECK(all_of(*late, RunningStage::train)[0].second == 0);
    late->load_state(state);
    CHECK(all_of(*late, RunningStage::train)[0].second == 1);
  }
  write_text(files.options.path, "label,text\neggs,they\n");
  {
    Module early(files.options);
    early.load_state(state);
    CHECK_THAT(message_of<CheckpointError>([&] { early.setup(TrainerFn::fit); }), ContainsSubstring("'eggs'"));
    const auto late = files.made();
    CHECK_THROWS_AS(late->load_state(state), CheckpointError);
    CHECK(late->classes() == std::vector<std::string>{"eggs"});
  }
  files.options.tokenizer = std::filesystem::path(FULGUR_TOKENIZER_FIXTURES) / "cased.json";
  write_text(files.options.path, "label,text\nspam,they\n");
  CHECK_THAT(message_of<CheckpointError>([&] { files.made()->load_state(state); }), ContainsSubstring("tokenizer"));
  files.options.tokenizer = "bert-base-uncased";
  CHECK_THAT(message_of<DataError>([&] { files.made(); }),
             ContainsSubstring("'bert-base-uncased' does not. Names of Hugging Face's hub are not downloaded"));
}

TEST_CASE("with the classes of a checkpoint, predict, test and validate read only the file of their stage") {
  Files files;
  const StateTree state = files.made()->state();
  std::filesystem::remove(files.options.path);
  write_text(files.folder / "new.csv", "text\nthey\n");
  write_text(files.folder / "held.csv", "label,text\nspam,they\n");
  const auto used = [&](auto change, TrainerFn fn, RunningStage stage) {
    Module::Options options = files.options;
    change(options);
    Module data(options);
    data.load_state(state);
    data.setup(fn);
    CHECK(data.classes() == std::vector<std::string>{"ham", "spam"});
    CHECK(names_of(data.exported_values().at("classes")).size() == 2);
    CHECK(data.loaders(RunningStage::train).empty());
    return first_batch(data, stage);
  };
  const auto predicts = [&](Module::Options& o) { o.predict_path = files.folder / "new.csv"; };
  const auto tests = [&](Module::Options& o) { o.test_path = files.folder / "held.csv"; };
  const auto validates = [&](Module::Options& o) { o.val_path = files.folder / "held.csv"; };
  CHECK_FALSE(used(predicts, TrainerFn::predict, RunningStage::predict).contains("label"));
  CHECK(used(tests, TrainerFn::test, RunningStage::test)["label"].equal(at::ones({1}, at::kLong)));
  CHECK(used(tests, TrainerFn::predict, RunningStage::predict).contains("label"));
  CHECK(used(validates, TrainerFn::validate, RunningStage::validate)["label"].equal(at::ones({1}, at::kLong)));
  CHECK_THAT(message_of<DataError>([&] { used(validates, TrainerFn::test, RunningStage::test); }),
             ContainsSubstring("a.csv"));
  // Without a checkpoint the training file is needed.
  Module::Options options = files.options;
  predicts(options);
  Module bare(options);
  CHECK_THAT(message_of<DataError>([&] { bare.setup(TrainerFn::predict); }), ContainsSubstring("a.csv"));
  // A later fit reads what is missing.
  Module later(options);
  later.load_state(state);
  later.setup(TrainerFn::predict);
  write_text(files.options.path, "label,text\nspam,they\n");
  later.setup(TrainerFn::fit);
  CHECK(all_of(later, RunningStage::train)[0].second == 1);
}

TEST_CASE("files that are damaged are refused with their line") {
  const auto refusal = [](const std::string& name, const std::string& text) {
    const Files files(name, text);
    return message_of<DataError>([&] { files.made(); });
  };
  CHECK_THAT(refusal("a.csv", "text,label\na,b\na,b,c\n"), ContainsSubstring("line 3"));
  CHECK_THAT(refusal("a.csv", "text,label\n\"a,b\n"), ContainsSubstring("line 2") && ContainsSubstring("does not end"));
  CHECK_THAT(refusal("a.csv", "x,label\na,b\n"), ContainsSubstring("'text'"));
  CHECK_THAT(refusal("a.csv", "text,label\n"), ContainsSubstring("no line but its header"));
  CHECK_THAT(refusal("a.csv", "text,label\na,\xff\n"), ContainsSubstring("line 2") && ContainsSubstring("UTF-8"));
  CHECK_THAT(refusal("a.jsonl", "{\"text\":\"a\",\"label\":1}\n{\"text\":\"a\"}\n"), ContainsSubstring("line 2"));
  CHECK_THAT(refusal("a.jsonl", "{\"text\":1,\"label\":1}"),
             ContainsSubstring("the key 'text' must be there, with a text"));
  CHECK_THAT(refusal("a.jsonl", "{\"text\":\"a\",\"label\":1.5}"), ContainsSubstring("whole number"));
  CHECK_THAT(refusal("a.jsonl", "[]"), ContainsSubstring("line 1"));
  CHECK_THAT(refusal("a.csv", "text,text,label\na,b,c\n"), ContainsSubstring("line 1") && ContainsSubstring("twice"));
  CHECK_THAT(refusal("a.csv", "text,label\nthe,a\n5\" disk,a\nthey,b\n6\" disk,b\n"),
             ContainsSubstring("line 3") && ContainsSubstring("a quote inside"));
  CHECK_THAT(refusal("a.csv", "text,label\n\"the\"x,a\n"),
             ContainsSubstring("line 2") && ContainsSubstring("text after the closing quote"));
  // A text with a quote inside would be read without it.
  CHECK_THAT(refusal("a.csv", "text,label\na \"b\" c,d\n"),
             ContainsSubstring("line 2") && ContainsSubstring("a quote inside"));
  CHECK_THAT(refusal("a.csv", "text,label\n\"two\nlines\",b\na,\n"),
             ContainsSubstring("line 4") && ContainsSubstring("a label"));
  Files files;
  files.options.path = files.folder / "none.csv";
  CHECK_THAT(message_of<DataError>([&] { files.made(); }), ContainsSubstring("none.csv"));
  files.options.path = files.folder / "a.tsv";
  CHECK_THAT(message_of<ConfigError>([&] { files.made(); }), ContainsSubstring(".csv or .jsonl"));
  files.options.path = "";
  CHECK_THROWS_AS(Module(files.options), ConfigError);
}

TEST_CASE("the fields of text and label can be named, and a blank text is no sample without special tokens") {
  Files files("a.csv", "body,class\nthe,x\n");
  files.options.text_field = "body";
  files.options.label_field = "class";
  CHECK(all_of(*files.made(), RunningStage::train) == std::vector<std::pair<Row, int64_t>>{{ids_of("the"), 0}});
  Files blank("a.csv", "text,label\n\"\",x\n");
  CHECK(all_of(*blank.made(), RunningStage::train)[0].first == ids_of(""));  // [CLS] and [SEP]
  blank.options.tokenizer = std::filesystem::path(FULGUR_TOKENIZER_FIXTURES) / "bpe.json";
  CHECK_THAT(message_of<DataError>([&] { first_batch(*blank.made()); }), ContainsSubstring("line 2"));
}

}  // namespace labelled_text_data_module_test
