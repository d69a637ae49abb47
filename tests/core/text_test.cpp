#include "fulgur/core/text/text.h"

#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstdlib>
#include <limits>

namespace text_test {

using namespace fulgur;

TEST_CASE("doubles are written so that they read back exactly and as doubles") {
  CHECK(format_double(1) == "1.0");
  CHECK(format_double(0.1) == "0.1");
  CHECK(format_double(-0.0) == "-0.0");
  CHECK(format_double(1e-5) == "1e-05");
  CHECK(format_double(1e-4) == "0.0001");
  CHECK(format_double(1e15) == "1000000000000000.0");
  CHECK(format_double(1e16) == "1e+16");
  CHECK(format_double(1e300) == "1e+300");
  CHECK(format_double(std::nan("")) == ".nan");
  CHECK(format_double(-std::numeric_limits<double>::infinity()) == "-.inf");
  for (double value : {0.1 + 0.2, 1.0 / 3, 1e-4 / 3, 1e16 / 3, 5e-324, std::numeric_limits<double>::max()}) {
    CHECK(std::strtod(format_double(value).c_str(), nullptr) == value);
  }
}

TEST_CASE("numbers for display") {
  CHECK(format_fixed(0.98765, 2) == "0.99");
  CHECK(format_fixed(2, 0) == "2");
  CHECK(format_fixed(std::numeric_limits<double>::max(), 1).size() == 311);
  CHECK(format_count(0) == "0");
  CHECK(format_count(999) == "999");
  CHECK(format_count(1234) == "1.2 K");
  CHECK(format_count(2'000'000) == "2.0 M");
  CHECK(format_count(3'000'000'000) == "3.0 B");
  CHECK(format_count(400'000'000'000'000) == "400 T");
}

TEST_CASE("F47 control characters cannot reach a terminal") {
  CHECK(escape_controls("a\nb\x1b[2Jc") == "a\\nb\\x1b[2Jc");
  CHECK(escape_controls("\x7f\t\r") == "\\x7f\\t\\r");
  CHECK(escape_controls("\xC2\x9B") == "\\x9b");
  CHECK(escape_controls("\xFFö→") == "\\xffö→");
}

TEST_CASE("a path is one word of a shell's command") {
  CHECK(shell_word("runs/version_0/epoch=1-step=2.ckpt") == "runs/version_0/epoch=1-step=2.ckpt");
  CHECK(shell_word("") == "''");
  CHECK(shell_word("my run/a.ckpt") == "'my run/a.ckpt'");
  for (const char* text : {"~", "a$b", "a;b", "a*", "a\"b", "a\\b", "a`b", "(a)", "a&b", "#a", "ö"})
    CHECK(shell_word(text) == cat("'", text, "'"));
  CHECK(shell_word("it's") == R"('it'\''s')");
  CHECK(shell_word("a\nb'\\\x1b") == R"($'a\x0ab\'\\\x1b')");
  CHECK(shell_word("\xC2\x9B\xFF") == R"($'\xc2\x9b\xff')");
}

TEST_CASE("texts are trimmed of spaces and tabs") {
  CHECK(trimmed(" \ta b\t ") == "a b");
  CHECK(trimmed("  ").empty());
  CHECK(trimmed("").empty());
}

TEST_CASE("UTF-8 is validated strictly") {
  CHECK(is_utf8(""));
  CHECK(is_utf8("añ→𝄞"));
  CHECK_FALSE(is_utf8("\xC0\xAF"));
  CHECK_FALSE(is_utf8("\xE0\x80\xAF"));
  CHECK_FALSE(is_utf8("\xED\xA0\x80"));
  CHECK_FALSE(is_utf8("\xF4\x90\x80\x80"));
  CHECK_FALSE(is_utf8("\xE2\x86"));
  CHECK_FALSE(is_utf8("\x80"));
}

TEST_CASE("nearest names") {
  const std::vector<std::string> names{"optimizer", "trainer", "model", "lr", "max_epochs", "class_path"};
  CHECK(nearest_names("optimzer", names) == std::vector<std::string>{"optimizer"});
  CHECK(nearest_names("otpimizer", names) == std::vector<std::string>{"optimizer"});
  CHECK(nearest_names("max-epochs", names) == std::vector<std::string>{"max_epochs"});
  CHECK(nearest_names("epochs", names) == std::vector<std::string>{"max_epochs"});
  CHECK(nearest_names("lrr", names) == std::vector<std::string>{"lr"});
  CHECK(nearest_names("banana", names).empty());
  CHECK(nearest_names("", names).empty());
  CHECK(nearest_names("aa", {"ab", "ac", "ad", "ae"}).size() == 3);
  CHECK(did_you_mean("modle", names) == "; did you mean 'model'?");
  CHECK(did_you_mean("zzzzzz", names).empty());
}

TEST_CASE("cat joins texts and numbers") {
  CHECK(cat("a", 1, 'b', 2.5, true, std::string("c"), int64_t{-3}) == "a1b2.5truec-3");
  CHECK(join({"a", "b", "c"}) == "a, b, c");
  CHECK(join({}).empty());
}

}  // namespace text_test
