// Ids and texts equal those of Hugging Face's tokenizers (fixtures/make_tokenizers.py).
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "fulgur/core/text/errors.h"
#include "fulgur/text/tokenizer.h"
#include "support/expect_error.h"
#include "support/temporary_folder.h"

namespace tokenizer_values_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using Ids = std::vector<int32_t>;

namespace {

const std::filesystem::path kFixtures = FULGUR_TOKENIZER_FIXTURES;

const nlohmann::json& cases() {
  static const nlohmann::json read = nlohmann::json::parse(test::read_text(kFixtures / "cases.json"));
  return read;
}

void check_values(const Tokenizer& tokenizer, const std::string& name) {
  REQUIRE(cases().size() > 40);
  for (const nlohmann::json& one : cases()) {
    const std::string text = one["text"].get<std::string>();
    const nlohmann::json& expected = one[name];
    INFO(name << ": " << text.substr(0, 100));
    const Ids ids = expected["ids"].get<Ids>();
    CHECK(tokenizer.encode(text) == ids);
    CHECK(tokenizer.with_special_tokens(ids) == expected["with_special"].get<Ids>());
    CHECK(static_cast<size_t>(tokenizer.num_special_tokens()) == expected["with_special"].size() - ids.size());
    CHECK(tokenizer.decode(ids) == expected["decoded"].get<std::string>());
    CHECK(tokenizer.decode(ids, /*skip_special_tokens=*/false) == expected["decoded_all"].get<std::string>());
  }
}

}  // namespace

TEST_CASE("ids, special tokens and decoded texts equal those of Hugging Face") {
  for (const std::string name : {"bpe", "roberta", "wordpiece", "cased"}) {
    const auto tokenizer = read_tokenizer(kFixtures / (name + ".json"));
    check_values(*tokenizer, name);
    const auto again = tokenizer_from_json(tokenizer->json(), "again");
    check_values(*again, name);
    CHECK(again->fingerprint() == tokenizer->fingerprint());
    CHECK(again->json() == tokenizer->json());
  }
}

TEST_CASE("ids of the patterns of Llama 3 and Qwen 2 equal those of Hugging Face, also of a text that is cut") {
  const auto chat_cases = nlohmann::json::parse(test::read_text(kFixtures / "chat_cases.json"));
  REQUIRE(chat_cases.size() > 40);
  for (const std::string name : {"llama3", "qwen2"}) {
    const auto tokenizer = read_tokenizer(kFixtures / (name + ".json"));
    const auto again = tokenizer_from_json(tokenizer->json(), "again");
    CHECK(again->fingerprint() == tokenizer->fingerprint());
    size_t cuts = 0;
    for (const nlohmann::json& one : chat_cases) {
      const std::string text = one["text"].get<std::string>();
      INFO(name << ": " << text.substr(0, 100));
      const Ids ids = one[name].get<Ids>();
      CHECK(tokenizer->encode(text) == ids);
      CHECK(again->encode(text) == ids);
      const std::string decoded = tokenizer->decode(ids, /*skip_special_tokens=*/false);
      CHECK(tokenizer->encode(decoded) == ids);
      if (name == "llama3") CHECK(decoded == text);
      for (size_t length = 1; length <= std::min<size_t>(text.size(), 200); ++length) {
        const size_t cut = tokenizer->last_cut(std::string_view(text).substr(0, length));
        if (cut == 0) continue;
        ++cuts;
        Ids parts = tokenizer->encode(std::string_view(text).substr(0, cut));
        const Ids rest = tokenizer->encode(std::string_view(text).substr(cut));
        parts.insert(parts.end(), rest.begin(), rest.end());
        REQUIRE(parts == ids);
      }
    }
    CHECK(cuts > 1000);
  }
  const auto llama = read_tokenizer(kFixtures / "llama3.json");
  CHECK(llama->with_special_tokens({1, 2}) == Ids{*llama->id_of("<|begin_of_text|>"), 1, 2});
}

TEST_CASE("GPT-2's and BERT's vocabularies give the tokenizers of their tokenizer.json") {
  const auto bpe = read_tokenizer(kFixtures / "bpe.json"), bert = read_tokenizer(kFixtures / "wordpiece.json");
  CHECK(bpe->fingerprint() != bert->fingerprint());
  for (const char* path : {"gpt2", "gpt2/vocab.json", "gpt2/merges.txt"})
    CHECK(read_tokenizer(kFixtures / path)->fingerprint() == bpe->fingerprint());
  for (const char* path : {"bert", "bert/vocab.txt"})
    CHECK(read_tokenizer(kFixtures / path)->fingerprint() == bert->fingerprint());
  const test::TemporaryFolder folder;
  std::filesystem::copy_file(kFixtures / "bert/vocab.txt", folder / "vocab.txt");
  test::write_text(folder / "tokenizer_config.json", R"({"do_lower_case": false})");
  const auto cased = read_tokenizer(folder.path());
  CHECK(cased->encode("the") == bert->encode("the"));
  CHECK(cased->encode("THE") != bert->encode("THE"));
}

TEST_CASE("a tokenizer knows its tokens") {
  const auto bert = read_tokenizer(kFixtures / "wordpiece.json");
  CHECK(bert->special_tokens() == std::vector<std::string>{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"});
  CHECK(bert->id_of("[SEP]") == 3);
  CHECK_FALSE(bert->id_of("no such token"));
  CHECK(bert->vocab_size() == 535);
  CHECK_THAT(test::message_of<DataError>([&] {
               static_cast<void>(bert->decode(Ids{1, 535}));
             }),
             ContainsSubstring("below 535; got 535"));
  CHECK_THROWS_AS(bert->decode(Ids{-1}), DataError);
}

TEST_CASE("a text that is not UTF-8 is refused with the position") {
  const auto bpe = read_tokenizer(kFixtures / "bpe.json");
  for (const auto& [text, place] : std::vector<std::pair<std::string, std::string>>{{"abc\xff", "byte 3 (0xff)"},
                                                                                    {"\xc3", "byte 0"},
                                                                                    {"ok \xed\xa0\x80", "byte 3"},
                                                                                    {"\xf4\x90\x80\x80", "byte 0"},
                                                                                    {"\xc0\xaf", "byte 0"}})
    CHECK_THAT(test::message_of<DataError>([&] { static_cast<void>(bpe->encode(text)); }), ContainsSubstring(place));
}

TEST_CASE("the ids of bytes that are not a character decode to the replacement character") {
  const auto bpe = read_tokenizer(kFixtures / "bpe.json");
  Ids ids = bpe->encode("\xf0\x9f\x98\xba");  // a cat that the corpus does not have
  REQUIRE(ids.size() > 1);
  ids.pop_back();
  CHECK(bpe->decode(ids) == "\xef\xbf\xbd");
}

TEST_CASE("the parts of a text that is cut have the ids of the whole") {
  for (const char* name : {"bpe", "wordpiece", "cased"}) {
    const auto tokenizer = read_tokenizer(kFixtures / (std::string(name) + ".json"));
    size_t cuts = 0;
    for (const nlohmann::json& one : cases()) {
      const std::string text = one["text"].get<std::string>();
      // Whatever follows the cut: each beginning of the text is cut.
      for (size_t length = 1; length <= std::min<size_t>(text.size(), 200); ++length) {
        const size_t cut = tokenizer->last_cut(std::string_view(text).substr(0, length));
        if (cut == 0) continue;
        ++cuts;
        Ids ids = tokenizer->encode(std::string_view(text).substr(0, cut));
        const Ids rest = tokenizer->encode(std::string_view(text).substr(cut));
        ids.insert(ids.end(), rest.begin(), rest.end());
        REQUIRE(ids == tokenizer->encode(text));
      }
    }
    CHECK(cuts > 1000);
  }
  // `http` takes the white space after it, and `New York` contains some.
  CHECK(read_tokenizer(kFixtures / "roberta.json")->last_cut("one two three") == 0);
}

TEST_CASE("threads share a tokenizer") {
  const auto tokenizer = read_tokenizer(kFixtures / "bpe.json");
  const std::string text = test::read_text(kFixtures / "corpus.txt");
  const Ids expected = tokenizer->encode(text);
  std::vector<Ids> got(4);
  std::vector<std::thread> threads;
  for (Ids& ids : got) threads.emplace_back([&] { ids = tokenizer->encode(text); });
  for (std::thread& thread : threads) thread.join();
  for (const Ids& ids : got) CHECK(ids == expected);
}

TEST_CASE("a word of a megabyte is encoded in less than quadratic time") {
  const auto tokenizer = read_tokenizer(kFixtures / "bpe.json");
  std::string word;
  while (word.size() < (1u << 20)) word += "thetheofand";
  const Ids ids = tokenizer->encode(word);
  CHECK(tokenizer->decode(ids) == word);
  CHECK(ids.size() < word.size());
}

}  // namespace tokenizer_values_test
