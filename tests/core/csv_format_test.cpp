#include "fulgur/core/text/csv_format.h"

#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <limits>

#include "loggers/hostile_names.h"

namespace csv_format_test {

using namespace fulgur;

TEST_CASE("fields are quoted as RFC 4180 says") {
  CHECK(csv_row({"a", "b,c", "d\"e", "f\ng", ""}) == "a,\"b,c\",\"d\"\"e\",\"f\ng\",\n");
}

TEST_CASE("F47: any field comes back from a CSV row") {
  const std::vector<std::string> fields = test::hostile_names();
  const std::string text = csv_row(fields) + csv_row({"1", "2"});
  size_t position = 0;
  CHECK(read_csv_row(text, position) == fields);
  CHECK(read_csv_row(text, position) == std::vector<std::string>{"1", "2"});
  CHECK_FALSE(read_csv_row(text, position).has_value());
}

TEST_CASE("an incomplete row is not a row") {
  size_t position = 0;
  CHECK_FALSE(read_csv_row("1,2", position).has_value());
  CHECK_FALSE(read_csv_row("1,\"2\n", position).has_value());
  CHECK(position == 0);
  CHECK(read_csv_row("1,2\r\n", position) == std::vector<std::string>{"1", "2"});
}

TEST_CASE("numbers are short and read back exactly") {
  CHECK(csv_number(0.1) == "0.1");
  CHECK(csv_number(2) == "2.0");
  CHECK(std::stod(csv_number(1.0 / 3)) == 1.0 / 3);
  CHECK(csv_number(std::nan("")) == "nan");
  CHECK(csv_number(std::numeric_limits<double>::infinity()) == "inf");
  CHECK(csv_number(-std::numeric_limits<double>::infinity()) == "-inf");
}

}  // namespace csv_format_test
