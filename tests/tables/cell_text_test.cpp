#include "columns/cell_text.h"

#include <catch2/catch_test_macros.hpp>
#include <cmath>

namespace cell_text_test {

using fulgur::tables::parse_datetime;
using fulgur::tables::parse_number;

TEST_CASE("numbers of cells are finite decimal numbers") {
  CHECK(parse_number("1") == 1.0);
  CHECK(parse_number("-122.23") == -122.23);
  CHECK(parse_number("+5") == 5.0);
  CHECK(parse_number("1e-3") == 0.001);
  CHECK(parse_number(".5") == 0.5);
  for (const char* const text :
       {"", "x", "1 ", " 1", "1,5", "0x10", "nan", "inf", "-inf", "1e999", "--1", "+-1", "++1", "+", "1_000"})
    CHECK_FALSE(parse_number(text).has_value());
}

TEST_CASE("dates are days since 1970, in UTC") {
  CHECK(parse_datetime("1970-01-01") == 0.0);
  CHECK(parse_datetime("2024-02-29") == 19782.0);
  CHECK(parse_datetime("1969-12-31") == -1.0);
  CHECK(parse_datetime("1970-01-02 06:00") == 1.25);
  CHECK(parse_datetime("1970-01-02T06:00:00Z") == 1.25);
  CHECK(parse_datetime("1970-01-02T06:00:00+06:00") == 1.0);
  CHECK(parse_datetime("1970-01-01T18:00:00-06:00") == 1.0);
  CHECK(std::abs(*parse_datetime("1970-01-01T00:00:00.5") - 0.5 / 86400) < 1e-15);
  for (const char* const text :
       {"", "2023-02-29", "2024-13-01", "2024-00-01", "24-01-01", "2024-1-1", "2024-01-01x", "2024-01-01T24:00",
        "2024-01-01T10", "2024-01-01T10:61", "2024-01-01T10:00:00.", "2024-01-01T10:00+1", "2024-01-01 ", "01/02/2024"})
    CHECK_FALSE(parse_datetime(text).has_value());
}

}  // namespace cell_text_test
