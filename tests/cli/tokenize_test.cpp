#include <catch2/catch_test_macros.hpp>
#include <csignal>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "process.h"

namespace tokenize_test {

using namespace fulgur::test;
using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

const fs::path kFixtures = fs::path(FULGUR_SOURCE_DIR) / "tests/text/fixtures";

struct Texts : TemporaryFolder {
  Texts() {
    fs::copy_file(kFixtures / "bpe.json", *this / "bpe.json");
    write_text(*this / "b.txt", "three four five<|endoftext|>six seven");
    write_text(*this / "a.txt", "one two");
  }
  Finished operator()(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "tokenize");
    return trainer(arguments, {.folder = path()});
  }
  Json info(const std::string& folder) const { return Json::parse(read_text(*this / folder / "tokens.json")); }
  size_t entries() const { return static_cast<size_t>(std::distance(fs::directory_iterator(path()), {})); }
};

}  // namespace

TEST_CASE("tokenize writes a folder from files and patterns") {
  const Texts texts;
  const Finished made = texts({"--tokenizer", "bpe.json", "--input", "*.txt", "--output", "t"});
  INFO(made.err);
  REQUIRE(made.exit_code == 0);
  CHECK(made.out == "t\n");
  CHECK(says(made.err, "3 documents"));
  CHECK(texts.info("t")["documents"] == 3);
  CHECK(texts.info("t")["dtype"] == "uint16");
  CHECK(texts.info("t")["vocab_size"] == 700);
  CHECK(texts.info("t")["separator"] == 0);
  // The same files by name, in the order of the pattern, and only that order.
  REQUIRE(texts({"--tokenizer", "bpe.json", "--input", "a.txt", "b.txt", "--output", "u", "--quiet"}).exit_code == 0);
  CHECK(read_text(texts / "t/tokens.bin") == read_text(texts / "u/tokens.bin"));
  const Finished quiet = texts({"--tokenizer", "t", "--input=b.txt", "--output", "v", "--quiet", "--separator", ""});
  CHECK(quiet.exit_code == 0);
  CHECK(quiet.err.empty());
  CHECK(texts.info("v")["documents"] == 1);
  CHECK(texts.info("v")["separator"].is_null());
  REQUIRE(texts({"--tokenizer", "bpe.json", "--input", "b.txt", "--output", "w", "--val_fraction", "0.3"}).exit_code ==
          0);
  CHECK(texts.info("w")["train_tokens"] < texts.info("w")["tokens"]);
}

TEST_CASE("tokenize warns of a validation part that is far longer than --val_fraction asks for") {
  const Texts texts;
  const std::string text = [] {
    std::string words;
    for (int i = 0; i < 200; ++i) words += "one two three\n";
    return words;
  }();
  for (const char* name : {"c.txt", "d.txt"}) write_text(texts / name, text);
  const auto made = [&](const char* part, const char* output, const std::vector<std::string>& inputs) {
    std::vector<std::string> arguments{"--tokenizer",    "bpe.json", "--output", output,
                                       "--val_fraction", part,       "--input"};
    arguments.insert(arguments.end(), inputs.begin(), inputs.end());
    const Finished done = texts(arguments);
    INFO(done.err);
    REQUIRE(done.exit_code == 0);
    return done.err;
  };
  const std::string long_part = made("0.05", "t", {"c.txt", "d.txt"});
  CHECK(says(long_part, "the part for validation has 50.0 % of the tokens"));
  CHECK(says(long_part, "--val_fraction 0.05 asks for 5.0 %"));
  CHECK(says(long_part, "[cli.long_validation_part]"));
  CHECK_FALSE(says(made("0.3", "u", {"c.txt", "d.txt"}), "cli.long_validation_part"));
  // One document is divided exactly.
  CHECK_FALSE(says(made("0.05", "v", {"c.txt"}), "cli.long_validation_part"));
  CHECK_FALSE(says(made("0", "w", {"c.txt", "d.txt"}), "cli.long_validation_part"));
}

TEST_CASE("tokenize reads JSON lines") {
  const Texts texts;
  write_text(texts / "a.jsonl", "{\"body\": \"one\"}\n{\"body\": \"two\"}\n");
  REQUIRE(texts({"--tokenizer", "bpe.json", "--input", "a.jsonl", "--jsonl", "body", "--output", "t"}).exit_code == 0);
  CHECK(texts.info("t")["documents"] == 2);
  const Finished wrong = texts({"--tokenizer", "bpe.json", "--input", "a.jsonl", "--jsonl", "text", "--output", "u"});
  CHECK(wrong.exit_code == 3);
  CHECK(says(wrong.err, "a.jsonl':1"));
}

TEST_CASE("tokenize trains a tokenizer on a column of a CSV file") {
  const Texts texts;
  write_text(texts / "a.csv", "label,body\nx,one two\ny,\"three, four\"\n");
  const Finished made =
      texts({"--train", "bpe", "--vocab_size", "300", "--csv", "body", "--input", "a.csv", "--output", "t"});
  INFO(made.err);
  REQUIRE(made.exit_code == 0);
  CHECK(texts.info("t")["documents"] == 2);
  const Finished both =
      texts({"--tokenizer", "bpe.json", "--input", "a.csv", "--csv", "body", "--jsonl", "body", "--output", "u"});
  CHECK(both.exit_code == 2);
  const Finished wrong = texts({"--tokenizer", "bpe.json", "--input", "a.csv", "--csv", "bodi", "--output", "u"});
  CHECK(wrong.exit_code == 3);
  CHECK(says(wrong.err, "did you mean 'body'?"));
}

TEST_CASE("tokenize trains a tokenizer, which the folder keeps") {
  const Texts texts;
  fs::copy_file(kFixtures / "corpus.txt", texts / "corpus.txt");
  const Finished bpe = texts({"--train", "bpe", "--vocab_size", "700", "--input", "corpus.txt", "--output", "t"});
  INFO(bpe.err);
  REQUIRE(bpe.exit_code == 0);
  REQUIRE(texts({"--tokenizer", "bpe.json", "--input", "corpus.txt", "--output", "u"}).exit_code == 0);
  CHECK(read_text(texts / "t/tokenizer.json") == read_text(texts / "u/tokenizer.json"));
  CHECK(read_text(texts / "t/tokens.bin") == read_text(texts / "u/tokens.bin"));
  REQUIRE(texts({"--train", "wordpiece", "--vocab_size", "400", "--input", "corpus.txt", "--output", "w", "--separator",
                 "[SEP]"})
              .exit_code == 0);
  CHECK(Json::parse(read_text(texts / "w/tokenizer.json"))["model"]["type"] == "WordPiece");
  CHECK(texts.info("w")["separator"] == 3);
  CHECK(texts.info("w")["vocab_size"] == 400);
}

TEST_CASE("wrong uses of tokenize have the exit codes of docs/errors.md and leave nothing") {
  const Texts texts;
  const size_t before = texts.entries();
  const auto code = [&](const std::vector<std::string>& arguments) { return texts(arguments).exit_code; };
  CHECK(code({"--tokenizer", "bpe.json", "--input", "a.txt"}) == 2);
  CHECK(code({"--tokenizer", "bpe.json", "--output", "t"}) == 2);
  CHECK(code({"--input", "a.txt", "--output", "t"}) == 2);
  CHECK(code({"--tokenizer", "bpe.json", "--train", "bpe", "--input", "a.txt", "--output", "t"}) == 2);
  CHECK(code({"--tokenizer", "bpe.json", "--vocab_size", "300", "--input", "a.txt", "--output", "t"}) == 2);
  CHECK(code({"--train", "unigram", "--input", "a.txt", "--output", "t"}) == 2);
  CHECK(code({"--train", "bpe", "--vocab_size", "100", "--input", "a.txt", "--output", "t"}) == 2);
  CHECK(code({"--tokenizer", "bpe.json", "--input", "a.txt", "--output", "t", "--val_fraction", "1"}) == 2);
  CHECK(code({"--tokenizer", "bpe.json", "--input", "a.txt", "--output", "t", "--separator", "<none>"}) == 2);
  CHECK(code({"--tokenizer", "bpe.json", "--input", "a.txt", "--output", "t", "--trainer.max_epochs", "3"}) == 2);
  CHECK(code({"--tokenizer", "bpe.json", "--input", "a.txt", "--output", "a.txt"}) == 2);
  CHECK(code({"--tokenizer", "bpe.json", "--input", "*.none", "--output", "t"}) == 3);
  CHECK(code({"--tokenizer", "none.json", "--input", "a.txt", "--output", "t"}) == 3);
  write_text(texts / "a.txt", "\xff");
  CHECK(code({"--tokenizer", "bpe.json", "--input", "a.txt", "--output", "t"}) == 3);
  CHECK(texts.entries() == before);
}

TEST_CASE("a full disk and signals leave no folder") {
  const Texts texts;
  const size_t before = texts.entries();
  {
    std::string text;
    while (text.size() < (8u << 20)) text += "some words and more of them\n";
    write_text(texts / "a.txt", text);
  }
  const std::vector<std::string> arguments{"tokenize", "--tokenizer", "bpe.json", "--input", "a.txt", "--output", "t"};
  const Finished full = trainer(arguments, {.folder = texts.path(), .file_size_kb = 64});
  CHECK(full.exit_code == 1);
  CHECK(says(full.err, "tokens.bin"));
  CHECK(texts.entries() == before);
  std::vector<std::string> many = arguments;
  many.insert(many.begin() + 5, 400, "a.txt");  // gigabytes: it does not end before the signal
  for (const auto& [signal, code] : std::vector<std::pair<int, int>>{{SIGINT, 130}, {SIGTERM, 143}}) {
    Running running(many, {.folder = texts.path()});
    REQUIRE(running.wait_until([&] { return fs::exists(texts / ".t.tmp/tokens.bin"); }));
    running.signal(signal);
    const Finished ended = running.wait();
    INFO(ended.err);
    CHECK(ended.exit_code == code);
    CHECK(texts.entries() == before);
  }
  // What kill -9 has left is removed by the next one.
  {
    Running running(many, {.folder = texts.path()});
    REQUIRE(running.wait_until([&] { return fs::exists(texts / ".t.tmp/tokens.bin"); }));
    const Finished other = trainer(arguments, {.folder = texts.path()});
    CHECK(other.exit_code == 2);
    CHECK(says(other.err, "another one writes"));
    running.signal(SIGKILL);
    CHECK(running.wait().exit_code == 128 + SIGKILL);
  }
  CHECK(fs::exists(texts / ".t.tmp"));
  CHECK_FALSE(fs::exists(texts / "t"));
  CHECK(trainer(arguments, {.folder = texts.path()}).exit_code == 0);
  CHECK(texts.entries() == before + 1);
}

TEST_CASE("a GPT trains on token files, is stopped and resumed exactly") {
  const Texts texts;
  fs::copy_file(kFixtures / "corpus.txt", texts / "corpus.txt");
  REQUIRE(
      texts({"--tokenizer", "bpe.json", "--input", "corpus.txt", "--output", "t", "--val_fraction", "0.2"}).exit_code ==
      0);
  write_text(texts / "c.yaml", R"(
seed_everything: 1
trainer: {max_epochs: 1, num_threads: 1, limit_train_batches: 4, enable_model_summary: false, enable_progress_bar: false}
model: {class_path: GPT, init_args: {n_layer: 1, n_head: 2, n_embd: 16}}
data: {class_path: TokenFilesDataModule, init_args: {paths: [t], block_size: 16, batch_size: 4, windows: packed}}
link: {model.init_args.vocab_size: data.vocab_size, model.init_args.block_size: data.block_size}
optimizer: {class_path: SGD, init_args: {lr: 0.1}}
)");
  const auto fit = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"fit", "-c", "c.yaml", "--report", "r.json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Finished done = trainer(arguments, {.folder = texts.path()});
    INFO(done.err);
    REQUIRE(done.exit_code == 0);
    return Json::parse(read_text(texts / "r.json"))["metrics"];
  };
  const Json whole = fit({"--trainer.default_root_dir", "whole"});
  fit({"--trainer.default_root_dir", "parts", "--trainer.stop_after", "2st"});
  CHECK(fit({"--trainer.default_root_dir", "parts", "--resume"}) == whole);
  // Another tokenizer does not fit the checkpoint.
  REQUIRE(texts({"--train", "bpe", "--vocab_size", "300", "--input", "corpus.txt", "--output", "u"}).exit_code == 0);
  const Finished other = trainer({"validate", "-c", "c.yaml", "--ckpt_path",
                                  "whole/fulgur_logs/version_0/checkpoints/last.ckpt", "--data.init_args.paths", "[u]"},
                                 {.folder = texts.path()});
  CHECK(other.exit_code == 4);
}

TEST_CASE("a GPT that was trained on token files continues the prompts of a file") {
  const Texts texts;
  fs::copy_file(kFixtures / "corpus.txt", texts / "corpus.txt");
  REQUIRE(texts({"--tokenizer", "bpe.json", "--input", "corpus.txt", "--output", "t"}).exit_code == 0);
  write_text(texts / "c.yaml", R"(
seed_everything: 1
trainer: {max_epochs: 1, num_threads: 1, limit_train_batches: 2, enable_model_summary: false, enable_progress_bar: false}
model:
  class_path: GPT
  init_args: {n_layer: 1, n_head: 2, n_kv_head: 1, n_embd: 16, block_size: 16, positions: rotary, norm: rms, mlp: swiglu}
data: {class_path: TokenFilesDataModule, init_args: {paths: [t], block_size: 16, batch_size: 4}}
link: {model.init_args.vocab_size: data.vocab_size}
optimizer: {class_path: SGD, init_args: {lr: 0.1}}
)");
  const Finished fitted =
      trainer({"fit", "-c", "c.yaml", "--trainer.default_root_dir", "run"}, {.folder = texts.path()});
  INFO(fitted.err);
  REQUIRE(fitted.exit_code == 0);
  write_text(texts / "prompts.txt", "the time of\none\n");
  write_text(texts / "p.yaml", R"(
trainer: {num_threads: 1, enable_progress_bar: false}
model:
  class_path: GPT
  init_args:
    {n_layer: 1, n_head: 2, n_kv_head: 1, n_embd: 16, block_size: 16, positions: rotary, norm: rms, mlp: swiglu,
     generate: {max_new_tokens: 20, temperature: 1.2, top_k: 50, seed: 3}}
data: {class_path: PromptsDataModule, init_args: {path: prompts.txt, tokenizer: t, samples_per_prompt: 2}}
link: {model.init_args.vocab_size: data.vocab_size}
)");
  const auto predict = [&](const std::string& folder, const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"predict",
                                       "-c",
                                       "p.yaml",
                                       "--trainer.default_root_dir",
                                       folder,
                                       "--ckpt_path",
                                       "run/fulgur_logs/version_0/checkpoints/last.ckpt"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Finished done = trainer(arguments, {.folder = texts.path()});
    INFO(done.err);
    CHECK(done.exit_code == 0);
    return done.exit_code == 0 ? read_text(texts / folder / "fulgur_logs/version_0/predictions.jsonl") : std::string();
  };
  const std::string lines = predict("a", {});
  std::vector<Json> rows;
  for (size_t begin = 0; begin < lines.size(); begin = lines.find('\n', begin) + 1)
    rows.push_back(Json::parse(lines.substr(begin, lines.find('\n', begin) - begin)));
  REQUIRE(rows.size() == 4);
  for (const Json& row : rows) CHECK(row.at("generated").size() == 20);
  CHECK(rows[1].at("prompt") == "the time of");
  CHECK(rows[2].at("prompt") == "one");
  for (const Json& row : rows)
    CHECK(row.at("text").get<std::string>().starts_with(row.at("prompt").get<std::string>()));
  CHECK(rows[0] != rows[1]);
  // The same for another batch size and on two ranks; other texts for another seed.
  CHECK(predict("b", {"--data.batch_size", "1"}) == lines);
  CHECK(predict("c", {"--trainer.accelerator", "cpu", "--trainer.strategy", "ddp", "--trainer.devices", "2"}) == lines);
  CHECK(predict("d", {"--model.generate.seed", "4"}) != lines);
  const Finished none = trainer({"predict", "-c", "p.yaml", "--model.generate.max_new_tokens", "0", "--ckpt_path",
                                 "run/fulgur_logs/version_0/checkpoints/last.ckpt"},
                                {.folder = texts.path()});
  CHECK(none.exit_code == 0);
  CHECK(says(none.err, "[models.generates_nothing]"));
  // The tokenizer must be that of the checkpoint.
  REQUIRE(texts({"--train", "bpe", "--vocab_size", "300", "--input", "corpus.txt", "--output", "u"}).exit_code == 0);
  const Finished other = trainer({"predict", "-c", "p.yaml", "--data.tokenizer", "u", "--ckpt_path",
                                  "run/fulgur_logs/version_0/checkpoints/last.ckpt"},
                                 {.folder = texts.path()});
  CHECK(other.exit_code == 4);
}

}  // namespace tokenize_test
