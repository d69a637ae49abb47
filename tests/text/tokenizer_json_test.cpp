// What a tokenizer.json must have, and what is refused.
#include <catch2/catch_test_macros.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/core/text/errors.h"
#include "fulgur/text/tokenizer.h"
#include "support/expect_error.h"
#include "support/temporary_folder.h"

namespace tokenizer_json_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using Json = nlohmann::json;
using Pointer = nlohmann::json::json_pointer;

namespace {

const std::filesystem::path kFixtures = FULGUR_TOKENIZER_FIXTURES;

Json fixture(const std::string& name) { return Json::parse(test::read_text(kFixtures / (name + ".json"))); }

std::string refusal(const Json& json) {
  return test::message_of<DataError>([&] { static_cast<void>(tokenizer_from_json(json.dump(), "t.json")); });
}

std::vector<int32_t> encoded(const Json& json, const std::string& text) {
  return tokenizer_from_json(json.dump(), "t.json")->encode(text);
}

struct Change {
  const char* place;
  Json value;
  const char* named;
};

void check_refused(const std::string& name, const std::vector<Change>& changes) {
  for (const Change& change : changes) {
    Json json = fixture(name);
    json[Pointer(change.place)] = change.value;
    INFO(name << " " << change.place << " " << change.value.dump());
    const std::string message = refusal(json);
    CHECK_THAT(message, ContainsSubstring("t.json"));
    CHECK_THAT(message, ContainsSubstring(change.named));
  }
}

}  // namespace

TEST_CASE("parts of a tokenizer.json that are not supported are refused by name") {
  check_refused("bpe", {{"/new_part", 1, "new_part"},
                        {"/truncation", 5, "truncation"},
                        {"/padding", Json::array(), "padding"},
                        {"/normalizer", Json{{"type", "NFKC"}}, "'NFKC' is not supported"},
                        {"/pre_tokenizer/type", "Metaspace", "'Metaspace'"},
                        {"/pre_tokenizer/new", true, "'new'"},
                        {"/pre_tokenizer", nullptr, "pre_tokenizer"},
                        {"/post_processor/type", "Sequence", "post_processor"},
                        {"/post_processor/type", "Other", "'Other'"},
                        {"/decoder/type", "Fuse", "'Fuse'"},
                        {"/decoder", nullptr, "decoder"},
                        {"/model/type", "Unigram", "'Unigram'"},
                        {"/model/dropout", 0.1, "model.dropout"},
                        {"/model/byte_fallback", true, "for a model with byte_fallback"},
                        {"/model/continuing_subword_prefix", "##", "continuing_subword_prefix"},
                        {"/model/end_of_word_suffix", "</w>", "end_of_word_suffix"},
                        {"/added_tokens/0/single_word", true, "single_word"}});
  check_refused(
      "llama3",
      {{"/pre_tokenizer/pretokenizers/0/pattern/Regex", "\\w+", "must be the pattern of GPT-2, GPT-4"},
       {"/pre_tokenizer/pretokenizers/0/pattern", Json{{"String", " "}}, "'String'"},
       {"/pre_tokenizer/pretokenizers/0/behavior", "Removed", "'Removed'"},
       {"/pre_tokenizer/pretokenizers/0/invert", true, "'Isolated'"},
       {"/pre_tokenizer/pretokenizers/0/type", "Digits", "must be Split and ByteLevel"},
       {"/pre_tokenizer/pretokenizers/1/use_regex", true, "use_regex false"},
       {"/pre_tokenizer/pretokenizers/1/add_prefix_space", true, "add_prefix_space false"},
       {"/pre_tokenizer/pretokenizers", Json::array(), "must be Split and ByteLevel"},
       {"/post_processor/processors/0/type", "Sequence", "post_processor.processors[0]"},
       {"/post_processor/processors/0", Json{{"type", "BertProcessing"}, {"cls", {"a", 64}}, {"sep", {"b", 65}}},
        "must be the only part of the sequence that adds tokens"}});
  check_refused("wordpiece", {{"/normalizer/type", "Lowercase", "'Lowercase' is not supported"},
                              {"/normalizer/new", true, "'new'"},
                              {"/pre_tokenizer/type", "Whitespace", "'Whitespace'"},
                              {"/decoder/prefix", "@@", "decoder.prefix"},
                              {"/model/new", 1, "'new'"}});
}

TEST_CASE("truncation and padding of a saved tokenizer are left to the data module") {
  Json json = fixture("bpe");
  const auto plain = tokenizer_from_json(json.dump(), "t.json");
  json["truncation"] = Json{{"direction", "Right"}, {"max_length", 2}, {"strategy", "LongestFirst"}, {"stride", 0}};
  json["padding"] = Json{{"strategy", "BatchLongest"}, {"direction", "Right"}, {"pad_id", 0}, {"pad_token", "x"}};
  const auto saved = tokenizer_from_json(json.dump(), "t.json");
  CHECK(saved->encode("the time of the first") == plain->encode("the time of the first"));
  CHECK(saved->encode("the time of the first").size() > 2);
  CHECK(saved->fingerprint() == plain->fingerprint());
}

TEST_CASE("parts of a model with byte_fallback that are not Llama's are refused by name") {
  check_refused("llama", {{"/normalizer", nullptr, "it has neither"},
                          {"/pre_tokenizer", Json{{"type", "Metaspace"}, {"replacement", "_"}}, "it has both"},
                          {"/normalizer/type", "NFC", "'NFC', which is not supported"},
                          {"/normalizer/normalizers/0/prepend", "x", "normalizer.normalizers[0].prepend"},
                          {"/normalizer/normalizers/1/content", "_", "must replace ' ' by"},
                          {"/normalizer/normalizers/1/type", "Strip", "it is 'Strip'"},
                          {"/decoder/decoders/1/type", "Metaspace", "must be a Sequence of Replace, ByteFallback"},
                          {"/decoder/decoders/3/stop", 1, "decoder.decoders[3].stop"},
                          {"/decoder/type", "ByteLevel", "must be a Sequence"},
                          {"/decoder", nullptr, "decoder"}});
  check_refused("metaspace", {{"/pre_tokenizer/replacement", "_", "pre_tokenizer.replacement"},
                              {"/pre_tokenizer/prepend_scheme", "last", "must be always, never or first"},
                              {"/pre_tokenizer/type", "Whitespace", "'Whitespace'"}});
  Json lacking = fixture("llama");
  lacking["model"]["vocab"].erase("<0x41>");
  CHECK_THAT(refusal(lacking), ContainsSubstring("'<0x41>' is not in the vocabulary"));
}

TEST_CASE("damaged parts of a tokenizer.json are refused with their place") {
  check_refused("bpe", {{"/model/merges/3", "abc", "model.merges[3]"},
                        {"/model/merges/3", Json::array({"a", "b", "c"}), "model.merges[3]"},
                        {"/model/merges/3", Json::array({"zzzz", "b"}), "merge 3"},
                        {"/model/merges", 5, "model.merges"},
                        {"/model/vocab/a", -1, "model.vocab.a"},
                        {"/model/vocab/a", 1.5, "model.vocab.a"},
                        {"/model/vocab/a", uint64_t{1} << 63, "model.vocab.a"},
                        {"/model/vocab/a", 1 << 24, "model.vocab.a"},
                        {"/model/vocab/a", 1, "id 1"},
                        {"/model/vocab", Json::array(), "model.vocab"},
                        {"/model", 3, "model"},
                        {"/added_tokens/0/id", 5, "<|endoftext|>"},
                        {"/added_tokens/0/content", "", "added token"},
                        {"/added_tokens/0/special", "yes", "added_tokens[0].special"}});
  check_refused("wordpiece", {{"/model/unk_token", "[none]", "[none]"},
                              {"/post_processor/special_tokens/[CLS]/ids", Json::array({99}), "[CLS]"},
                              {"/post_processor/special_tokens/[CLS]/ids", Json::array(), "[CLS]"},
                              {"/post_processor/single", Json::array(), "must contain the text"}});
  Json repeated = fixture("bpe");
  repeated["model"]["merges"].push_back(repeated["model"]["merges"][0]);
  CHECK_THAT(refusal(repeated), ContainsSubstring("has occurred before"));
  Json lacking = fixture("bpe");
  lacking["model"]["merges"] = Json::array();
  lacking["model"]["vocab"].erase("a");
  CHECK_THAT(refusal(lacking), ContainsSubstring("byte 97 ('a')"));
  for (const char* text : {"", "{", "[]", "null", "{}", "\"x\""})
    CHECK_THROWS_AS(tokenizer_from_json(text, "t.json"), DataError);
}

TEST_CASE("files of a tokenizer that are not there or damaged are refused") {
  const test::TemporaryFolder folder;
  CHECK_THAT(test::message_of<DataError>([&] { read_tokenizer(folder / "none.json"); }),
             ContainsSubstring("none.json"));
  CHECK_THAT(test::message_of<DataError>([&] { read_tokenizer(folder.path()); }),
             ContainsSubstring("contains none of them"));
  CHECK_THROWS_AS(read_tokenizer(""), ConfigError);
  test::write_text(folder / "bad.json", "{\"a\": \"\xff\"}");
  CHECK_THAT(test::message_of<DataError>([&] { read_tokenizer(folder / "bad.json"); }), ContainsSubstring("byte 7"));
  std::filesystem::copy_file(kFixtures / "gpt2/vocab.json", folder / "vocab.json");
  test::write_text(folder / "merges.txt", "#version: 0.2\na b c\n");
  CHECK_THAT(test::message_of<DataError>([&] { read_tokenizer(folder.path()); }), ContainsSubstring("merges.txt':2"));
}

TEST_CASE("an unknown token stands for bytes without a token, fused if that is set") {
  Json json = fixture("bpe");
  json["model"]["merges"] = Json::array();
  json["model"]["vocab"].erase("a");
  json["model"]["unk_token"] = "<|endoftext|>";
  const int32_t b = json["model"]["vocab"]["b"].get<int32_t>();
  CHECK(encoded(json, "aab") == std::vector<int32_t>{0, 0, b});
  json["model"]["fuse_unk"] = true;
  CHECK(encoded(json, "aab") == std::vector<int32_t>{0, b});
}

TEST_CASE("a word of the vocabulary is not split with ignore_merges") {
  Json json = fixture("bpe");
  json["model"]["vocab"]["qqq"] = 5000;
  CHECK(encoded(json, "qqq").size() == 3);
  json["model"]["ignore_merges"] = true;
  CHECK(encoded(json, "qqq") == std::vector<int32_t>{5000});
  CHECK(tokenizer_from_json(json.dump(), "t")->vocab_size() == 5001);
}

TEST_CASE("a pattern that removes what is between its matches divides as one that isolates them") {
  Json json = fixture("llama3");
  Json& split = json["pre_tokenizer"]["pretokenizers"][0];
  split["behavior"] = "Removed";
  split["invert"] = true;
  const std::string text = "It's 12345 (words)\n\n and  spaces";
  CHECK(encoded(json, text) == encoded(fixture("llama3"), text));
  // Three digits are a word, which the vocabulary may have; in Qwen 2's pattern each digit is one.
  json["model"]["vocab"]["123"] = 5000;
  CHECK(encoded(json, "12345").front() == 5000);
  split = fixture("qwen2")["pre_tokenizer"]["pretokenizers"][0];
  CHECK(encoded(json, "12345").size() == 5);
  // GPT-2's pattern is what ByteLevel has by itself.
  Json gpt2 = fixture("bpe"), written = gpt2;
  written["pre_tokenizer"] = fixture("llama3")["pre_tokenizer"];
  written["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] =
      R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
  CHECK(tokenizer_from_json(written.dump(), "a")->fingerprint() ==
        tokenizer_from_json(gpt2.dump(), "b")->fingerprint());
}

TEST_CASE("options of the words have their effect") {
  Json json = fixture("bpe");
  const auto plain = encoded(json, "and");
  json["pre_tokenizer"]["add_prefix_space"] = true;
  CHECK(encoded(json, "and") == encoded(fixture("bpe"), " and"));
  CHECK(encoded(json, "and") != plain);
  json = fixture("bpe");
  json["pre_tokenizer"]["use_regex"] = false;
  const auto tokenizer = tokenizer_from_json(json.dump(), "t.json");
  CHECK(tokenizer->decode(tokenizer->encode("one two")) == "one two");
  CHECK(tokenizer->last_cut("one two") == 0);  // the text is one word
  json = fixture("wordpiece");
  json["model"]["max_input_chars_per_word"] = 2;
  CHECK(encoded(json, "the") == std::vector<int32_t>{1});
  json["model"]["max_input_chars_per_word"] = -5;
  CHECK_THAT(refusal(json), ContainsSubstring("model.max_input_chars_per_word must be at least 0; got -5"));
  json = fixture("wordpiece");
  json["normalizer"]["lowercase"] = false;
  CHECK(encoded(json, "THE") != encoded(fixture("wordpiece"), "THE"));
  json["normalizer"] = fixture("wordpiece")["normalizer"];
  json["normalizer"]["strip_accents"] = false;
  CHECK(encoded(json, "\xc3\xa9") != encoded(fixture("wordpiece"), "\xc3\xa9"));
  json = fixture("wordpiece");
  json["decoder"]["cleanup"] = false;
  const auto spaced = tokenizer_from_json(json.dump(), "t.json");
  CHECK(spaced->decode(spaced->encode("the.")) == "the .");
}

}  // namespace tokenizer_json_test
