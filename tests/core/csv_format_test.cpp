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

namespace {

struct Scanned {
  CsvFault fault;
  std::vector<std::string> fields;
  size_t length;
  int64_t line_feeds;
};

Scanned scanned(std::string_view text, bool at_end = true, char delimiter = ',') {
  CsvScanner scanner(delimiter);
  const CsvFault fault = scanner.scan(text, at_end);
  return {fault, {scanner.fields().begin(), scanner.fields().end()}, scanner.length(), scanner.line_feeds()};
}

using Fields = std::vector<std::string>;

}  // namespace

TEST_CASE("a record is scanned by the rules of RFC 4180") {
  CHECK(scanned("a,b\nc").fields == Fields{"a", "b"});
  CHECK(scanned("a,b\nc").length == 4);
  CHECK(scanned("a,b\r\nc").length == 5);
  CHECK(scanned("a,b\r\nc").fields == Fields{"a", "b"});
  CHECK(scanned("a,b").fields == Fields{"a", "b"});
  CHECK(scanned("a,b\r").fields == Fields{"a", "b"});
  CHECK(scanned(",\n").fields == Fields{"", ""});
  CHECK(scanned("\n").fields == Fields{""});
  CHECK(scanned("\"a,\"\"b\n\"\"\",\"\",c\n").fields == Fields{"a,\"b\n\"", "", "c"});
  CHECK(scanned("\"a,\"\"b\n\"\"\",\"\",c\n").line_feeds == 2);
  CHECK(scanned("\"x\"\"y\",\"z\"\"\"\"\"").fields == Fields{"x\"y", "z\"\""});
  CHECK(scanned("a;b,c\n", true, ';').fields == Fields{"a", "b,c"});
  CHECK(scanned(" a , \t\n").fields == Fields{" a ", " \t"});
}

TEST_CASE("what is no CSV is a fault, and what may become a record is incomplete") {
  using enum CsvFault;
  CHECK(scanned("a\"b\n").fault == quote_in_field);
  CHECK(scanned("\"a\"b\n").fault == text_after_quote);
  CHECK(scanned("\"a\"\rb\n").fault == text_after_quote);
  CHECK(scanned("a\rb\n").fault == lone_return);
  CHECK(scanned(std::string_view("a\0b\n", 4)).fault == nul);
  CHECK(scanned(std::string_view("\"a\0b\"\n", 6)).fault == nul);
  CHECK(scanned("\"a\nb").fault == incomplete);
  // Whatever the next byte may be.
  CHECK(scanned("a,b", false).fault == incomplete);
  CHECK(scanned("a,b\r", false).fault == incomplete);
  CHECK(scanned("a,\"b\"", false).fault == incomplete);
  CHECK(scanned("", false).fault == incomplete);
}

TEST_CASE("a record is the same wherever the text is cut before it is complete") {
  const std::string text = "\"a\"\"\r\n\",b,\"\"\r\n";
  for (size_t i = 0; i < text.size(); ++i) {
    CAPTURE(i);
    CHECK(scanned(std::string_view(text).substr(0, i), false).fault == CsvFault::incomplete);
  }
  CHECK(scanned(text, false).fields == Fields{"a\"\r\n", "b", ""});
}

TEST_CASE("a lenient reader accepts quotes inside fields") {
  size_t position = 0;
  CHECK(read_csv_row("a\"b,c\"d,\"x\"y\n", position) == Fields{"ab,cd", "xy"});
  CHECK(position == 13);
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
