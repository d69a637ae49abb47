#include "fulgur/text/train_tokenizer.h"

#include <catch2/catch_test_macros.hpp>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "fulgur/core/text/errors.h"
#include "support/expect_error.h"
#include "support/temporary_folder.h"

namespace train_tokenizer_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using Model = TokenizerTrainer::Model;

namespace {

const std::filesystem::path kFixtures = FULGUR_TOKENIZER_FIXTURES;

std::string corpus() { return test::read_text(kFixtures / "corpus.txt"); }

std::shared_ptr<const Tokenizer> trained(const TokenizerTrainer::Options& options, const std::string& text) {
  TokenizerTrainer trainer(options);
  trainer.add(text);
  return trainer.train();
}

}  // namespace

TEST_CASE("a trained BPE has the vocabulary and the merges of Hugging Face's trainer") {
  const auto made = trained({.vocab_size = 700}, corpus());
  const auto expected = read_tokenizer(kFixtures / "bpe.json");
  CHECK(made->vocab_size() == 700);
  CHECK(made->json() == expected->json());
}

TEST_CASE("the order of the texts and their division at word borders do not matter") {
  const std::string text = corpus();
  const size_t middle = text.find('\n', text.size() / 2);
  for (const Model model : {Model::bpe, Model::wordpiece}) {
    const TokenizerTrainer::Options options{.model = model, .vocab_size = 500};
    TokenizerTrainer divided(options);
    divided.add(std::string_view(text).substr(middle));
    divided.add(std::string_view(text).substr(0, middle));
    CHECK(divided.train()->fingerprint() == trained(options, text)->fingerprint());
  }
}

TEST_CASE("a pair that is more frequent comes first, and of equal ones that of smaller ids") {
  // The pair of a and b occurs 3 times; those of b and c, of c and d, and of the space and each of them twice. The ids
  // of bytes are in the order of their characters, and the space is one of the last ones.
  const auto made = trained({.vocab_size = 260}, "ab ab ab bc bc cd cd");
  const auto json = nlohmann::json::parse(made->json());
  CHECK(json["model"]["merges"] == nlohmann::json::array({"a b", "b c", "c d"}));
}

TEST_CASE("a WordPiece covers words by frequent parts") {
  const auto made = trained({.model = Model::wordpiece, .vocab_size = 24}, "low lower lowest low low");
  // 5 special tokens; e l o r s t w; ##e ##o ##r ##s ##t ##w; then the most frequent pairs.
  CHECK(made->id_of("low"));
  CHECK(made->encode("low") == std::vector<int32_t>{*made->id_of("low")});
  CHECK(made->encode("LOW") == made->encode("low"));
  CHECK(made->encode("xyz") == std::vector<int32_t>{*made->id_of("[UNK]")});
  CHECK(made->with_special_tokens({7}) == std::vector<int32_t>{2, 7, 3});
  const auto cased = trained({.model = Model::wordpiece, .vocab_size = 30, .lower_case = false}, "low LOW low");
  CHECK(cased->encode("LOW") != cased->encode("low"));
}

TEST_CASE("rare pairs are not merged") {
  CHECK(trained({.vocab_size = 1000, .min_frequency = 3}, "ab ab ab cd cd")->id_of("ab"));
  CHECK_FALSE(trained({.vocab_size = 1000, .min_frequency = 4}, "ab ab ab cd cd")->id_of("ab"));
  CHECK(trained({.vocab_size = 1000}, "ab cd")->vocab_size() < 270);  // no more pairs
}

TEST_CASE("special tokens are the first ids") {
  const auto made = trained({.vocab_size = 300, .special_tokens = {"<s>", "</s>"}}, "a text <s>");
  CHECK(made->special_tokens() == std::vector<std::string>{"<s>", "</s>"});
  CHECK(made->id_of("</s>") == 1);
  CHECK(made->encode("<s>") == std::vector<int32_t>{0});
}

TEST_CASE("a tokenizer of tiny Shakespeare gives the text back") {
  const char* data = std::getenv("FULGUR_TRIAL_DATA");
  const std::filesystem::path path =
      std::filesystem::path(data != nullptr ? data : "") / "tinyshakespeare" / "input.txt";
  if (data == nullptr || !std::filesystem::exists(path))
    SKIP("there is no tinyshakespeare/input.txt in FULGUR_TRIAL_DATA");
  const std::string text = test::read_text(path);
  const auto made = trained({.vocab_size = 1000}, text);
  CHECK(made->vocab_size() == 1000);
  const std::vector<int32_t> ids = made->encode(text);
  CHECK((made->decode(ids) == text));
  CHECK(ids.size() < text.size() / 2);
}

TEST_CASE("options and texts of a training are checked") {
  CHECK_THROWS_AS(TokenizerTrainer({.vocab_size = 0}), ConfigError);
  CHECK_THROWS_AS(TokenizerTrainer({.vocab_size = (1 << 24) + 1}), ConfigError);
  CHECK_THROWS_AS(TokenizerTrainer({.min_frequency = -1}), ConfigError);
  CHECK_THROWS_AS(TokenizerTrainer({.special_tokens = {"a", "a"}}), ConfigError);
  CHECK_THROWS_AS(TokenizerTrainer({.special_tokens = {""}}), ConfigError);
  CHECK_THROWS_AS(TokenizerTrainer({.model = Model::wordpiece, .special_tokens = {"[CLS]"}}), ConfigError);
  CHECK_THAT(test::message_of<ConfigError>([] { trained({.vocab_size = 256}, "a"); }), ContainsSubstring("257 tokens"));
  CHECK_THROWS_AS(trained({.model = Model::wordpiece, .vocab_size = 12}, "abcdefghi ihgfedcba"), ConfigError);
  CHECK_THROWS_AS(TokenizerTrainer({}).train(), DataError);
  CHECK_THAT(test::message_of<DataError>([] { trained({}, "ok \xff"); }), ContainsSubstring("byte 3"));
}

}  // namespace train_tokenizer_test
