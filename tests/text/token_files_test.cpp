#include "fulgur/text/token_files.h"

#include <sys/stat.h>

#include <catch2/catch_test_macros.hpp>
#include <cerrno>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "checkpoint/fault_calls.h"
#include "fulgur/core/text/errors.h"
#include "support/expect_error.h"
#include "support/temporary_folder.h"

namespace token_files_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using test::message_of;
using test::TemporaryFolder;
using test::write_text;
using Ids = std::vector<int32_t>;

namespace {

constexpr const char* kSeparator = "<|endoftext|>";

std::shared_ptr<const Tokenizer> fixture(const std::string& name = "bpe") {
  return read_tokenizer(std::filesystem::path(FULGUR_TOKENIZER_FIXTURES) / (name + ".json"));
}

Ids all_tokens(const TokenFiles& files) {
  std::vector<int64_t> wide(static_cast<size_t>(files.info().tokens));
  files.read(0, files.info().tokens, wide.data());
  return {wide.begin(), wide.end()};
}

Ids joined(const std::vector<std::string>& documents, const Tokenizer& tokenizer) {
  Ids all;
  for (const std::string& document : documents) {
    const Ids ids = tokenizer.encode(document);
    all.insert(all.end(), ids.begin(), ids.end());
    all.push_back(*tokenizer.id_of(kSeparator));
  }
  return all;
}

size_t entries_of(const std::filesystem::path& folder) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

/// A text file and the tokens of it.
struct Written {
  TemporaryFolder folder;
  std::shared_ptr<const Tokenizer> tokenizer = fixture();
  TokenFilesInfo info;
  explicit Written(const std::string& text, double val_fraction = 0) {
    write_text(folder / "a.txt", text);
    info = write_token_files({.inputs = {folder / "a.txt"}, .separator = kSeparator}, *tokenizer, path(), val_fraction);
  }
  std::filesystem::path path() const { return folder / "tokens"; }
  void change_info(const char* key, const nlohmann::json& value) const {
    auto json = nlohmann::json::parse(test::read_text(path() / "tokens.json"));
    json[key] = value;
    write_text(path() / "tokens.json", json.dump());
  }
};

}  // namespace

TEST_CASE("documents are tokenized one after the other, each with a separator after it") {
  const Written made("one two<|endoftext|>three<|endoftext|><|endoftext|>\nfour\n");
  const TokenFiles files(made.path());
  const std::vector<std::string> documents{"one two", "three", "\nfour\n"};  // the empty one is left out
  CHECK(all_tokens(files) == joined(documents, *made.tokenizer));
  CHECK(files.info().documents == 3);
  CHECK(files.info().separator == 0);
  CHECK(files.info().bytes_per_token == 2);
  CHECK(files.info().vocab_size == 700);
  CHECK(files.info().train_tokens == files.info().tokens);
  CHECK_NOTHROW(files.check_documents());
  CHECK_NOTHROW(files.check_checksums());
  CHECK(files.tokenizer()->fingerprint() == made.tokenizer->fingerprint());
  const auto first = static_cast<int64_t>(joined({"one two"}, *made.tokenizer).size());
  CHECK(files.document_end(0) == first);
  CHECK(files.document_end(first - 1) == first);
  CHECK(files.document_end(first) > first);
  CHECK(files.document_end(files.info().tokens - 1) == files.info().tokens);
  CHECK(entries_of(made.folder.path()) == 2);  // no hidden folder is left
}

TEST_CASE("without a separator each file is a document") {
  const TemporaryFolder folder;
  write_text(folder / "a.txt", "one");
  write_text(folder / "b.txt", "two <|endoftext|>");
  write_text(folder / "c.txt", "");
  const auto tokenizer = fixture();
  const DocumentFiles documents{.inputs = {folder / "b.txt", folder / "c.txt", folder / "a.txt"}};
  const TokenFilesInfo info = write_token_files(documents, *tokenizer, folder / "deep/tokens");
  CHECK(info.documents == 2);
  CHECK_FALSE(info.separator);
  Ids expected = tokenizer->encode("two <|endoftext|>");
  const Ids second = tokenizer->encode("one");
  expected.insert(expected.end(), second.begin(), second.end());
  CHECK(all_tokens(TokenFiles(folder / "deep/tokens")) == expected);
}

TEST_CASE("the ids of a file that is read in pieces are those of the whole") {
  // Above two pieces of 4 MiB, with documents of all sizes.
  const std::string corpus = test::read_text(std::filesystem::path(FULGUR_TOKENIZER_FIXTURES) / "corpus.txt");
  std::string text;
  std::vector<std::string> documents(1);
  for (size_t i = 0; text.size() < (9u << 20); ++i) {
    const std::string part = corpus.substr(0, corpus.find('\n', (i * 7919) % 8000) + 1);
    text += part;
    documents.back() += part;
    if (i % 3 == 0 && i > 1300) {  // the first document has several MiB
      text += kSeparator;
      documents.emplace_back();
    }
  }
  REQUIRE(documents[0].size() > (4u << 20));
  const Written made(text);
  if (documents.back().empty()) documents.pop_back();
  CHECK(made.info.documents == static_cast<int64_t>(documents.size()));
  CHECK((all_tokens(TokenFiles(made.path())) == joined(documents, *made.tokenizer)));
}

TEST_CASE("JSON lines are documents") {
  const TemporaryFolder folder;
  const auto tokenizer = fixture();
  write_text(folder / "a.jsonl", "{\"text\": \"one\\ntwo\", \"id\": 1}\n\n{\"text\": \"\"}\r\n{\"text\": \"three\"}");
  const DocumentFiles documents{.inputs = {folder / "a.jsonl"}, .jsonl_field = "text", .separator = kSeparator};
  CHECK(write_token_files(documents, *tokenizer, folder / "t").documents == 2);
  CHECK(all_tokens(TokenFiles(folder / "t")) == joined({"one\ntwo", "three"}, *tokenizer));
  for (const auto& [line, found] : std::vector<std::pair<std::string, std::string>>{{"{\"text\": 3}", "of type number"},
                                                                                    {"{\"x\": 3}", "no such field"},
                                                                                    {"[1]", "of type array"},
                                                                                    {"{", "parsed"}}) {
    write_text(folder / "a.jsonl", "{\"text\": \"good\"}\n" + line + "\n");
    const std::string message = message_of<DataError>([&] { write_token_files(documents, *tokenizer, folder / "u"); });
    CHECK_THAT(message, ContainsSubstring("a.jsonl':2"));
    CHECK_THAT(message, ContainsSubstring(found));
    CHECK_FALSE(std::filesystem::exists(folder / "u"));
    CHECK(entries_of(folder.path()) == 2);
  }
}

TEST_CASE("rows of CSV files are documents") {
  const TemporaryFolder folder;
  const auto tokenizer = fixture();
  write_text(folder / "a.csv", "\xef\xbb\xbfid,text\r\n1,\"one\ntwo, \"\"x\"\"\"\r\n\n2,\n3,three");
  DocumentFiles documents{.inputs = {folder / "a.csv"}, .csv_column = "text", .separator = kSeparator};
  CHECK(write_token_files(documents, *tokenizer, folder / "t").documents == 2);
  CHECK(all_tokens(TokenFiles(folder / "t")) == joined({"one\ntwo, \"x\"", "three"}, *tokenizer));
  // Rows that cross the pieces in which the file is read are whole.
  std::string text = "text\n";
  std::vector<std::string> rows;
  for (int64_t bytes = 0; bytes < (9 << 20); bytes += static_cast<int64_t>(rows.back().size()) + 1) {
    rows.push_back("one " + std::to_string(rows.size()));
    for (int i = 0; i < 50; ++i) rows.back() += " two three four";
    text += rows.back() + "\n";
  }
  write_text(folder / "b.csv", text);
  documents.inputs = {folder / "b.csv"};
  CHECK(write_token_files(documents, *tokenizer, folder / "b").documents == static_cast<int64_t>(rows.size()));
  const auto words = all_tokens(TokenFiles(folder / "b"));
  CHECK((words == joined(rows, *tokenizer)));
  for (const auto& [wrong, line, found] : std::vector<std::tuple<std::string, std::string, std::string>>{
           {"id,texts\n1,one\n", "c.csv':1", "did you mean 'texts'"},
           {"text,id\none,1\ntwo\n", "c.csv':3", "as many columns as the header, 2; got 1"},
           {"text\n\"one\n", "c.csv':2", "the line"},
           {"", "c.csv':1", "it is empty"},
           {"text\n\xff\n", "c.csv':2", "UTF-8"}}) {
    write_text(folder / "c.csv", wrong);
    documents.inputs = {folder / "c.csv"};
    const std::string message = message_of<DataError>([&] { write_token_files(documents, *tokenizer, folder / "u"); });
    CHECK_THAT(message, ContainsSubstring(line));
    CHECK_THAT(message, ContainsSubstring(found));
    CHECK_FALSE(std::filesystem::exists(folder / "u"));
  }
}

TEST_CASE("the validation part is the end, and begins with a document if there are several") {
  const Written several("one two three<|endoftext|>four five six<|endoftext|>seven eight", 0.4);
  const auto begin = static_cast<int64_t>(joined({"one two three"}, *several.tokenizer).size());
  CHECK(several.info.train_tokens == begin);
  const Written one("one two three four five six seven eight nine ten", 0.4);
  CHECK(one.info.documents == 1);
  CHECK(one.info.train_tokens == one.info.tokens - std::llround(0.4 * static_cast<double>(one.info.tokens)));
}

TEST_CASE("tokens have 32 bits for a large vocabulary") {
  auto json = nlohmann::json::parse(fixture()->json());
  json["model"]["vocab"]["qqqq"] = 70000;
  json["model"]["ignore_merges"] = true;
  const auto tokenizer = tokenizer_from_json(json.dump(), "t");
  const TemporaryFolder folder;
  write_text(folder / "a.txt", "qqqq");
  const TokenFilesInfo info = write_token_files({.inputs = {folder / "a.txt"}}, *tokenizer, folder / "t");
  CHECK(info.bytes_per_token == 4);
  CHECK(all_tokens(TokenFiles(folder / "t")) == Ids{70000});
}

TEST_CASE("inputs and options that cannot be used leave nothing") {
  const TemporaryFolder folder;
  const auto tokenizer = fixture();
  write_text(folder / "good.txt", "text");
  write_text(folder / "bad.txt", "ok \xff");
  const auto writing = [&](const DocumentFiles& documents, double val_fraction = 0) {
    return [=, &folder] { write_token_files(documents, *tokenizer, folder / "t", val_fraction); };
  };
  CHECK_THAT(message_of<DataError>(writing({.inputs = {folder / "good.txt", folder / "bad.txt"}})),
             ContainsSubstring("bad.txt' must be UTF-8; byte 3"));
  CHECK_THAT(message_of<DataError>(writing({.inputs = {folder / "none.txt"}})), ContainsSubstring("none.txt"));
  CHECK_THAT(message_of<DataError>(writing({.inputs = {folder.path()}})), ContainsSubstring("not a regular file"));
  REQUIRE(::mkfifo((folder / "fifo").c_str(), 0600) == 0);
  CHECK_THAT(message_of<DataError>(writing({.inputs = {folder / "fifo"}})), ContainsSubstring("not a regular file"));
  CHECK_THAT(message_of<ConfigError>(writing({.inputs = {folder / "good.txt"}, .separator = "<none>"})),
             ContainsSubstring("<none>"));
  CHECK_THROWS_AS(writing({})(), ConfigError);
  CHECK_THROWS_AS(writing({.inputs = {folder / "good.txt"}}, 1.0)(), ConfigError);
  write_text(folder / "empty.txt", "");
  CHECK_THROWS_AS(writing({.inputs = {folder / "empty.txt"}})(), DataError);
  CHECK(entries_of(folder.path()) == 4);
  std::filesystem::create_directory(folder / "t");
  CHECK_THAT(message_of<ConfigError>(writing({.inputs = {folder / "good.txt"}})), ContainsSubstring("exists"));
}

TEST_CASE("what a killed process has left is removed, and a watch that throws leaves nothing") {
  const TemporaryFolder folder;
  const auto tokenizer = fixture();
  std::filesystem::create_directory(folder / ".t.tmp");
  write_text(folder / ".t.tmp/tokens.bin", "half");
  std::string text;
  while (text.size() < (10u << 20)) text += "some words and more of them ";
  write_text(folder / "a.txt", text);
  const DocumentFiles documents{.inputs = {folder / "a.txt"}};
  int calls = 0;
  CHECK_THROWS_AS(write_token_files(documents, *tokenizer, folder / "t", 0,
                                    [&](const TokenizeProgress& now) {
                                      ++calls;
                                      CHECK(now.bytes > 0);
                                      CHECK(now.bytes <= now.all_bytes);
                                      CHECK(now.tokens > 0);
                                      throw Interrupted(2);
                                    }),
                  Interrupted);
  CHECK(calls == 1);
  CHECK(entries_of(folder.path()) == 1);
  std::filesystem::create_directory(folder / ".t.tmp");
  write_text(folder / ".t.tmp/tokens.bin", "half");
  CHECK_NOTHROW(write_token_files(documents, *tokenizer, folder / "t"));
  CHECK_NOTHROW(TokenFiles(folder / "t").check_checksums());
}

TEST_CASE("a write that fails is an error that says so, and leaves nothing") {
  const TemporaryFolder folder;
  write_text(folder / "a.txt", "some words");
  for (const char* failing : {"mkdir", "write", "fsync", "rename"}) {
    CAPTURE(failing);
    test::FaultCalls faults([&](std::string_view name, const std::function<long()>& call) -> long {
      if (name != failing) return call();
      errno = ENOSPC;
      return -1;
    });
    const std::string text =
        message_of<Error>([&] { write_token_files({.inputs = {folder / "a.txt"}}, *fixture(), folder / "t"); });
    CHECK_THAT(text, ContainsSubstring("[text.tokenize] the output must be written: ") &&
                         ContainsSubstring("No space left") && ContainsSubstring("--output"));
    CHECK(entries_of(folder.path()) == 1);
  }
}

TEST_CASE("a damaged folder of tokens is refused") {
  const auto refusal = [](const Written& made) {
    return message_of<DataError>([&] {
      const TokenFiles files(made.path());
      files.check_checksums();
      files.check_documents();
      std::vector<int64_t> to(static_cast<size_t>(files.info().tokens));
      files.read(0, files.info().tokens, to.data());
    });
  };
  const std::string text = "one two<|endoftext|>three four";
  for (const auto& [key, value] : std::vector<std::pair<const char*, nlohmann::json>>{{"format", "other"},
                                                                                      {"version", 2},
                                                                                      {"dtype", "uint32"},
                                                                                      {"tokens", 0},
                                                                                      {"tokens", -5},
                                                                                      {"tokens", uint64_t{1} << 63},
                                                                                      {"tokens", 1.5},
                                                                                      {"documents", 1000},
                                                                                      {"train_tokens", 1000},
                                                                                      {"vocab_size", 0},
                                                                                      {"separator", 700},
                                                                                      {"tokenizer", 3},
                                                                                      {"tokens_crc32", 1}}) {
    const Written made(text);
    made.change_info(key, value);
    INFO(key << " " << value.dump());
    CHECK_FALSE(refusal(made).empty());
  }
  for (const char* name : {"tokens.bin", "documents.bin"}) {
    const Written shorter(text);
    std::filesystem::resize_file(shorter.path() / name, 2);
    CHECK_THAT(refusal(shorter), ContainsSubstring(name));
    const Written flipped(text);
    std::string bytes = test::read_text(flipped.path() / name);
    bytes[0] = static_cast<char>(bytes[0] ^ 1);
    write_text(flipped.path() / name, bytes);
    CHECK_THAT(refusal(flipped), ContainsSubstring("checksum"));
    const Written absent(text);
    std::filesystem::remove(absent.path() / name);
    CHECK_THAT(refusal(absent), ContainsSubstring(name));
  }
  const Written above(text);
  above.change_info("vocab_size", 5);
  above.change_info("separator", nullptr);
  CHECK_THAT(message_of<DataError>([&] { all_tokens(TokenFiles(above.path())); }),
             ContainsSubstring("below vocab_size"));
  const Written other(text);
  write_text(other.path() / "tokenizer.json", fixture("wordpiece")->json());
  CHECK_THROWS_AS(TokenFiles(other.path()).tokenizer(), DataError);
  CHECK_THROWS_AS(TokenFiles(other.path() / "none"), DataError);
  const TokenFiles good(other.path());
  std::vector<int64_t> to(100);
  CHECK_THROWS_AS(good.read(-1, 1, to.data()), DataError);
  CHECK_THROWS_AS(good.read(good.info().tokens, 1, to.data()), DataError);
  CHECK_THROWS_AS(good.read(1, good.info().tokens, to.data()), DataError);
}

TEST_CASE("a tokenizer is trained on files as on their texts") {
  const TemporaryFolder folder;
  write_text(folder / "a.txt", "ab ab<|endoftext|>cd cd cd");
  write_text(folder / "b.txt", "ef");
  TokenizerTrainer::Options options;
  options.vocab_size = 264;
  TokenizerTrainer by_files(options), by_texts(options);
  add_documents({.inputs = {folder / "a.txt", folder / "b.txt"}, .separator = kSeparator}, by_files);
  for (const char* text : {"ab ab", "cd cd cd", "ef"}) by_texts.add(text);
  CHECK(by_files.train()->fingerprint() == by_texts.train()->fingerprint());
}

}  // namespace token_files_test
