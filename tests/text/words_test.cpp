#include <catch2/catch_test_macros.hpp>
#include <string>
#include <vector>

#include "unicode/characters.h"
#include "words/bert_words.h"
#include "words/gpt2_words.h"
#include "words/gpt4_words.h"

namespace words_test {

using fulgur::detail::BertNormalization;
using Words = std::vector<std::string>;

namespace {

Words gpt2_words(std::string_view text) {
  Words words;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = fulgur::detail::gpt2_word_end(text, begin);
    REQUIRE(end > begin);
    words.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  return words;
}

Words gpt4_words(std::string_view text, int most_digits = 3) {
  Words words;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = fulgur::detail::gpt4_word_end(text, begin, most_digits);
    REQUIRE(end > begin);
    words.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  return words;
}

Words bert_words(std::string_view text) {
  Words words;
  fulgur::detail::for_each_bert_word(text, [&](std::string_view word) { words.emplace_back(word); });
  return words;
}

}  // namespace

TEST_CASE("a text is divided as GPT-2's pattern divides it") {
  CHECK(gpt2_words("Hello world's  end") == Words{"Hello", " world", "'s", " ", " end"});
  CHECK(gpt2_words("a1 b2!? ") == Words{"a", "1", " b", "2", "!?", " "});
  CHECK(gpt2_words("'ll'x'") == Words{"'ll", "'", "x", "'"});
  CHECK(gpt2_words("x\n\n y") == Words{"x", "\n\n", " y"});
  CHECK(gpt2_words("x \n y\n") == Words{"x", " \n", " y", "\n"});
  CHECK(gpt2_words("   ") == Words{"   "});
  CHECK(gpt2_words("\xc2\xa0\xc3\xa9") == Words{"\xc2\xa0", "\xc3\xa9"});  // only U+0020 joins a word
}

TEST_CASE("a text is divided as GPT-4's pattern divides it") {
  CHECK(gpt4_words("Hello world's  end") == Words{"Hello", " world", "'s", " ", " end"});
  CHECK(gpt4_words("IT'S 'LLx '\xc5\xbfx") == Words{"IT", "'S", " '", "LLx", " '", "\xc5\xbfx"});
  CHECK(gpt4_words("I'\xc5\xbfx we'Re") == Words{"I", "'\xc5\xbf", "x", " we", "'Re"});
  CHECK(gpt4_words("a12345 6") == Words{"a", "123", "45", " ", "6"});
  CHECK(gpt4_words("a12345", 1) == Words{"a", "1", "2", "3", "4", "5"});
  CHECK(gpt4_words("(foo) $x\ty ?!\r\n\nz") == Words{"(foo", ")", " $", "x", "\ty", " ?!\r\n\n", "z"});
  CHECK(gpt4_words("x\n\n  \n  y") == Words{"x", "\n\n  \n", " ", " y"});
  CHECK(gpt4_words("\ny  ") == Words{"\n", "y", "  "});
  CHECK(gpt4_words("\xc2\xa0\xc3\xa9") == Words{"\xc2\xa0\xc3\xa9"});  // any space joins a word
}

TEST_CASE("composition changes only what has a composed form") {
  using fulgur::detail::composed;
  CHECK_FALSE(composed("plain \xc3\xa9"));
  CHECK(composed("e\xcc\x81") == "\xc3\xa9");
  CHECK(composed("q\xcc\x87\xcc\xa3") == "q\xcc\xa3\xcc\x87");                // in canonical order
  CHECK(composed("\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab") == "\xed\x95\x9c");  // Hangul
  CHECK(composed("\xe2\x84\xab") == "\xc3\x85");                              // the sign of the ångström
  CHECK(composed("\xe0\xa5\x98") == "\xe0\xa4\x95\xe0\xa4\xbc");              // excluded from composition
}

TEST_CASE("a line feed after punctuation belongs to its word, in some patterns") {
  using fulgur::detail::last_word_border;
  CHECK(last_word_border("one two!\n", " \n") == 8);
  CHECK(last_word_border("one two!\n", " \n", /*punctuation_takes_line_ends=*/true) == 3);
  CHECK(last_word_border("one two\n", " \n", /*punctuation_takes_line_ends=*/true) == 7);
}

TEST_CASE("a text is divided as BERT divides it") {
  CHECK(bert_words(" one,two  $3 ") == Words{"one", ",", "two", "$", "3"});
  CHECK(bert_words("\xe2\x80\x94x") == Words{"\xe2\x80\x94", "x"});
}

TEST_CASE("each step of BERT's normalisation can be left out") {
  const std::string text = "\x01\xc3\x89\t\xe4\xbd\xa0";  // a control character, É, a tab, a Chinese character
  const BertNormalization all;
  CHECK(fulgur::detail::normalized(text, all) == "e  \xe4\xbd\xa0 ");
  BertNormalization how = all;
  how.clean_text = false;
  CHECK(fulgur::detail::normalized(text, how) ==
        "\x01"
        "e\t \xe4\xbd\xa0 ");
  how = all;
  how.handle_chinese_chars = false;
  CHECK(fulgur::detail::normalized(text, how) == "e \xe4\xbd\xa0");
  how = all;
  how.strip_accents = false;
  CHECK(fulgur::detail::normalized(text, how) == "\xc3\xa9  \xe4\xbd\xa0 ");
  how.lowercase = false;
  CHECK(fulgur::detail::normalized(text, how) == "\xc3\x89  \xe4\xbd\xa0 ");
}

TEST_CASE("bytes that are not UTF-8 are found, and replaced one sequence at a time") {
  using fulgur::detail::first_invalid_byte;
  using fulgur::detail::with_replacements;
  CHECK(first_invalid_byte("a\xc3\xa9\xf0\x9f\x98\x80") == std::string_view::npos);
  CHECK(first_invalid_byte("ab\xe2\x82") == 2);
  CHECK(first_invalid_byte("\xe0\x80\x80") == 0);
  CHECK(with_replacements("a\xe2\x82z") == "a\xef\xbf\xbdz");
  CHECK(with_replacements("\xf0\x9f\x98") == "\xef\xbf\xbd");
  CHECK(with_replacements("\xff\xfe") == "\xef\xbf\xbd\xef\xbf\xbd");
  CHECK(with_replacements("\xed\xa0\x80") == "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
}

TEST_CASE("a text is cut before a space that a word does not reach over") {
  using fulgur::detail::last_word_border;
  CHECK(last_word_border("one two thr", " \n") == 7);
  CHECK(last_word_border("one  ", " \n") == 3);
  CHECK(last_word_border(" one", " \n") == 0);
  CHECK(last_word_border("one\ntwo", " ") == 0);
  CHECK(last_word_border("\xe3\x80\x80 x", " ") == 0);  // U+3000 is white space
  CHECK(last_word_border("\xe4\xbd\xa0 x", " ") == 3);
  CHECK(last_word_border("", " ") == 0);
}

}  // namespace words_test
