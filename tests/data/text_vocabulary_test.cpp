#include "fulgur/data/text_vocabulary.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>

#include "fulgur/core/text/errors.h"
#include "support/expect_error.h"

namespace text_vocabulary_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using test::message_of;

TEST_CASE("bytes are their own numbers") {
  const TextVocabulary bytes = TextVocabulary::bytes();
  CHECK(bytes.size() == 256);
  CHECK(bytes.characters().empty());
  const std::string text("a\xff\0b", 4);
  const Tensor tokens = bytes.encode(text);
  CHECK(at::equal(tokens, at::tensor({97, 255, 0, 98}, at::kByte)));
  CHECK((bytes.decode(tokens) == text));
  CHECK(bytes.encode("").numel() == 0);
}

TEST_CASE("characters have numbers in their order, whatever their length in UTF-8") {
  const std::string text = "zürich – 東京 𝄞 z";
  const TextVocabulary vocabulary = TextVocabulary::characters_of(text);
  CHECK((vocabulary.characters() == " chirzü–京東𝄞"));
  CHECK(vocabulary.size() == 11);
  const Tensor tokens = vocabulary.encode(text);
  CHECK(tokens.scalar_type() == at::kByte);
  CHECK(tokens.numel() == 15);
  CHECK(at::equal(tokens.narrow(0, 0, 4), at::tensor({5, 6, 4, 3}, at::kByte)));
  CHECK((vocabulary.decode(tokens) == text));
  CHECK((TextVocabulary::characters_of(vocabulary.characters()).decode(tokens.view({3, 5})) == text));
}

TEST_CASE("more than 256 characters take wider numbers") {
  std::string text;
  for (int i = 0; i < 300; ++i)
    text += {static_cast<char>(0xe4 + i / 4096), static_cast<char>(0x80 + i / 64), static_cast<char>(0x80 + i % 64)};
  const TextVocabulary vocabulary = TextVocabulary::characters_of(text);
  REQUIRE(vocabulary.size() == 300);
  const Tensor tokens = vocabulary.encode(text);
  CHECK(at::equal(tokens, at::arange(300, at::kInt)));
  CHECK((vocabulary.decode(tokens) == text));
}

TEST_CASE("what a vocabulary cannot encode is named") {
  const TextVocabulary vocabulary = TextVocabulary::characters_of("abc");
  CHECK_THAT(message_of<DataError>([&] { vocabulary.encode("abca\nb"); }),
             ContainsSubstring("which has 3; '\\n' at byte 4 is not"));
  CHECK_THAT(message_of<DataError>([&] { vocabulary.encode("a\xff"); }), ContainsSubstring("must be UTF-8"));
  CHECK_THAT(message_of<DataError>([] { TextVocabulary::characters_of("\xc3"); }),
             ContainsSubstring("Set tokens to byte"));
  CHECK_THROWS_AS(TextVocabulary::characters_of(""), DataError);
  CHECK_THAT(message_of<DataError>([&] {
               vocabulary.decode(at::tensor({0, 3}, at::kLong));
             }),
             ContainsSubstring("[0, 3); got 3"));
}

}  // namespace text_vocabulary_test
