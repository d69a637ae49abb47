#include "fulgur/core/options/problem_excerpts.h"

#include <catch2/catch_test_macros.hpp>

#include "fulgur/core/text/text.h"
#include "fulgur/core/text/text_table.h"

namespace problem_excerpts_test {

using namespace fulgur;

namespace {

std::string shown(const Problems& problems, int64_t columns = 80, std::string_view hint = {}) {
  try {
    problems.throw_if_any(hint);
  } catch (const BadConfig& error) {
    return problem_excerpts(error, columns);
  }
  return "no error";
}

/// The line that has the caret, and what stands above it.
std::pair<std::string, std::string> line_and_caret(const std::string& text) {
  const auto lines = split_text(text, '\n');
  for (size_t i = 1; i < lines.size(); ++i)
    if (lines[i].find_first_not_of(' ') != std::string::npos && lines[i].ends_with('^') &&
        lines[i].find_first_not_of(" ^") == std::string::npos)
      return {lines[i - 1], lines[i]};
  return {};
}

}  // namespace

TEST_CASE("a problem is shown with its line, a caret and its message") {
  Problems problems;
  problems.keep_text("c.yaml", "trainer:\n  max_epochs: 010\n");
  problems.add({"c.yaml", 2, 15}, "trainer.max_epochs", "expected int; got '010'.");
  CHECK(shown(problems) ==
        "[config]\n"
        "c.yaml:2:15:\n"
        "      max_epochs: 010\n"
        "                  ^\n"
        "  trainer.max_epochs: expected int; got '010'.");
}

TEST_CASE("arguments have a caret under the key or the value, and problems without a place have one line") {
  Problems problems;
  problems.keep_argument(1, "--trainer.max_epochs many");
  problems.add({.source = "command line", .column = 22, .argument = 1}, "trainer.max_epochs", "expected int.");
  problems.add({.source = "command line", .column = 3, .argument = 1}, "trainer.max_epochs", "unknown key.");
  problems.add({.source = "environment variable FULGUR_X__Y"}, "x.y", "unknown key.");
  CHECK(shown(problems, 80, "\nhint") ==
        "[config] 3 problems:\n"
        "command line:\n"
        "    --trainer.max_epochs many\n"
        "                         ^\n"
        "  trainer.max_epochs: expected int.\n"
        "command line:\n"
        "    --trainer.max_epochs many\n"
        "      ^\n"
        "  trainer.max_epochs: unknown key.\n"
        "environment variable FULGUR_X__Y: x.y: unknown key.\n"
        "hint");
}

TEST_CASE("the message of the error has one line for each problem, and the hint") {
  Problems problems;
  problems.keep_text("c.yaml", "a: b\n");
  problems.add({"c.yaml", 1, 4}, "a", "expected int.");
  try {
    problems.throw_if_any("\nhint");
    FAIL("no error");
  } catch (const ConfigError& error) {
    CHECK(std::string(error.what()) == "[config] c.yaml:1:4: a: expected int.\nhint");
    CHECK(error.code() == ExitCode::usage);
  }
}

TEST_CASE("a long line is cut around the caret, wherever it is") {
  for (const int64_t columns : {30, 40, 80, 200}) {
    for (const size_t at : {size_t{0}, size_t{7}, size_t{300}, size_t{599}, size_t{600}}) {
      std::string line;
      for (int i = 0; i < 300; ++i) line += "ab";
      line.replace(at, at < line.size() ? 1 : 0, "X");
      Problems problems;
      problems.keep_text("c.yaml", line);
      problems.add({"c.yaml", 1, static_cast<int>(at) + 1}, "a", "wrong.");
      const auto [text, caret] = line_and_caret(shown(problems, columns));
      INFO(text << "\n" << caret);
      CHECK(columns_of(text) <= columns);
      REQUIRE(!caret.empty());
      // The caret's column is that of the X.
      const size_t x = text.find('X');
      REQUIRE(x != std::string::npos);
      CHECK(columns_of(text.substr(0, x)) == static_cast<int64_t>(caret.size()) - 1);
      CHECK((at < 10 || text.find("…") != std::string::npos));
    }
  }
}

TEST_CASE("wide characters before the caret count as the columns that they take") {
  Problems problems;
  problems.keep_text("c.yaml", "{日本: X}");
  problems.add({"c.yaml", 1, 10}, "日本", "wrong.");
  const auto [text, caret] = line_and_caret(shown(problems));
  CHECK(text == "    {日本: X}");
  CHECK(caret.size() == 4 + 7 + 1);
}

TEST_CASE("hostile bytes are escaped, and the caret stays in its place") {
  Problems problems;
  problems.keep_text("c\x1b.yaml", "a\x1b[31m\xff\t: X");
  problems.add({"c\x1b.yaml", 1, 11}, "a\x1b", "wrong \x1b[0m\n.");
  const std::string text = shown(problems);
  CHECK(text.find('\x1b') == std::string::npos);
  CHECK(text.find('\xff') == std::string::npos);
  const auto [line, caret] = line_and_caret(text);
  CHECK(line == "    a\\x1b[31m\\xff\\t: X");
  CHECK(line.size() == caret.size());
}

TEST_CASE("a place outside the text has no line, and a column beyond the line is its end") {
  Problems problems;
  problems.keep_text("c.yaml", "ab");
  problems.add({"c.yaml", 9, 1}, "a", "wrong.");
  CHECK(shown(problems) == "[config]\nc.yaml:9:1: a: wrong.");
  Problems end;
  end.keep_text("c.yaml", "ab");
  end.add({"c.yaml", 1, 99}, "", "ends too early.");
  CHECK(shown(end) == "[config]\nc.yaml:1:99:\n    ab\n      ^\n  ends too early.");
}

}  // namespace problem_excerpts_test
