// Tokenizers of SentencePiece's style: ids and texts equal those of Hugging Face (fixtures/make_llama_tokenizers.py).
#include <catch2/catch_test_macros.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "fulgur/text/tokenizer.h"
#include "support/temporary_folder.h"

namespace space_marks_test {

using namespace fulgur;
using Ids = std::vector<int32_t>;

namespace {

const std::filesystem::path kFixtures = FULGUR_TOKENIZER_FIXTURES;

void check_llama_values(const Tokenizer& tokenizer, const nlohmann::json& cases, const std::string& name) {
  for (const nlohmann::json& one : cases) {
    const nlohmann::json& expected = one[name];
    const Ids ids = (one.contains("ids") ? one["ids"] : expected["ids"]).get<Ids>();
    INFO(name << ": " << one.dump().substr(0, 100));
    if (one.contains("text")) {
      CHECK(tokenizer.encode(one["text"].get<std::string>()) == ids);
      CHECK(tokenizer.with_special_tokens(ids) == expected["with_special"].get<Ids>());
    }
    CHECK(tokenizer.decode(ids) == expected["decoded"].get<std::string>());
    CHECK(tokenizer.decode(ids, /*skip_special_tokens=*/false) == expected["decoded_all"].get<std::string>());
  }
}

}  // namespace

TEST_CASE("tokenizers with byte_fallback give the ids and texts of Hugging Face") {
  const nlohmann::json cases = nlohmann::json::parse(test::read_text(kFixtures / "llama_cases.json"));
  REQUIRE(cases.size() > 40);
  for (const std::string name : {"llama", "metaspace", "metaspace_split"}) {
    const auto tokenizer = read_tokenizer(kFixtures / (name + ".json"));
    check_llama_values(*tokenizer, cases, name);
    const auto again = tokenizer_from_json(tokenizer->json(), "again");
    check_llama_values(*again, cases, name);
    CHECK(again->fingerprint() == tokenizer->fingerprint());
  }
}

TEST_CASE("a text of any length has the ids of its characters, and cannot be cut") {
  const auto tokenizer = read_tokenizer(kFixtures / "llama.json");
  std::string text;
  for (int i = 0; i < 2'000; ++i) text += "the time \u4f60\n";
  const Ids ids = tokenizer->encode(text);
  CHECK(tokenizer->decode(ids) == text);
  CHECK(tokenizer->last_cut(text) == 0);
}

}  // namespace space_marks_test
