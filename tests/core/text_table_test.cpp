#include "fulgur/core/text/text_table.h"

#include <catch2/catch_test_macros.hpp>
#include <clocale>

namespace text_table_test {

using namespace fulgur;

TEST_CASE("text_table: a text takes as many columns as a terminal shows") {
  CHECK(columns_of("") == 0);
  CHECK(columns_of("abc") == 3);
  CHECK(columns_of("żółw θ ×") == 8);
  CHECK(columns_of("█│─…") == 4);
  CHECK(columns_of("日本") == 4);
  CHECK(columns_of("👍") == 2);
  CHECK(columns_of("e\u0301") == 1);  // an accent of its own
  CHECK(columns_of("a\xff"
                   "b") == 3);  // not UTF-8
}

TEST_CASE("text_table: no character is cut in two") {
  CHECK(fit_columns("日本語", 4).bytes == 6);
  CHECK(fit_columns("日本語", 5).bytes == 6);
  CHECK(fit_columns("abc", 0).bytes == 0);
  CHECK(fit_columns("abc", 9).bytes == 3);
}

TEST_CASE("text_table: cells are padded by columns, and the last one not at all") {
  const std::vector<TextRow> rows{{"name", "値", "note"}, {"żółw", "1", ""}, {"x"}};
  const std::vector<int64_t> widths = column_widths(rows);
  CHECK(widths == std::vector<int64_t>{4, 2, 4});
  CHECK(aligned(rows[0], widths) == "name  値  note");
  CHECK(aligned(rows[1], widths, " | ") == "żółw | 1  | ");
  CHECK(aligned(rows[2], widths) == "x");
  CHECK(padded("long", 2) == "long");
  CHECK(aligned_lines(rows) == "name  値  note\nżółw  1   \nx\n");
  CHECK(aligned_lines({}).empty());
}

TEST_CASE("text_table: the locale of the process stays") {
  const std::string before = std::setlocale(LC_ALL, nullptr);
  columns_of("日本");
  CHECK(std::setlocale(LC_ALL, nullptr) == before);
  CHECK(columns_of("日本") == 4);
}

}  // namespace text_table_test
