#include "reading/csv_file.h"

#include <chrono>

#include "fulgur/core/text/errors.h"
#include "reading/table_rows.h"
#include "support/expect_error.h"
#include "support/temporary_folder.h"

namespace csv_file_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using tables::CsvFile;
using test::message_of;
using test::TemporaryFolder;
using test::write_text;

namespace {

std::vector<std::vector<std::string>> rows_of(const std::filesystem::path& path, char delimiter = ',') {
  CsvFile file(path, delimiter);
  std::vector<std::vector<std::string>> rows;
  while (file.next()) rows.emplace_back(file.fields().begin(), file.fields().end());
  CHECK_FALSE(file.next());
  return rows;
}

using Rows = std::vector<std::vector<std::string>>;

}  // namespace

TEST_CASE("a table has a header and rows, with any line ends, a byte order mark, and no line feed at its end") {
  const TemporaryFolder folder;
  for (const std::string mark : {"", "\xef\xbb\xbf"})
    for (const std::string end : {"\n", "\r\n"}) {
      write_text(folder / "t.csv", mark + "a,b" + end + "1,\"x\ny\"" + end + end + "2," + end + "3,z");
      CHECK(rows_of(folder / "t.csv") == Rows{{"1", "x\ny"}, {"2", ""}, {"3", "z"}});
      const CsvFile file(folder / "t.csv", ',');
      CHECK(file.header() == std::vector<std::string>{"a", "b"});
      CHECK(file.column("b") == 1);
    }
  write_text(folder / "t.csv", "a\tb\n1\t2\n");
  CHECK(rows_of(folder / "t.csv", '\t') == Rows{{"1", "2"}});
  // With one column, an empty line is a blank cell.
  write_text(folder / "t.csv", "a\n1\n\n2\n");
  CHECK(rows_of(folder / "t.csv") == Rows{{"1"}, {""}, {"2"}});
}

TEST_CASE("the columns of a wide table are found in a time that grows with their number") {
  constexpr int kColumns = 100000;
  const TemporaryFolder folder;
  std::vector<std::string> names;
  std::string header, row;
  for (int i = 0; i < kColumns; ++i) {
    names.push_back("column_with_a_long_name_" + std::to_string(i));
    header += (i > 0 ? "," : "") + names.back();
    row += (i > 0 ? "," : "") + std::to_string(i);
  }
  write_text(folder / "wide.csv", header + "\n" + row + "\n");
  const auto start = std::chrono::steady_clock::now();
  tables::TableRows rows({folder / "wide.csv"}, ',', names);
  REQUIRE(rows.next());
  // A search of the header for each column compares 5e9 names.
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
  CHECK(rows.cell(0) == "0");
  CHECK(rows.cell(kColumns - 1) == std::to_string(kColumns - 1));
}

TEST_CASE("rows may lie across blocks, and a place in a file is reached again") {
  const TemporaryFolder folder;
  std::string text = "a,b\n";
  for (int i = 0; i < 60000; ++i)
    text += std::to_string(i) + ",\"some \"\"text\"\"\n of row " + std::to_string(i) + "\"\n";
  REQUIRE(text.size() > (size_t{2} << 20));
  write_text(folder / "t.csv", text);
  CsvFile file(folder / "t.csv", ',');
  std::vector<tables::CsvPlace> places;
  for (int i = 0; i < 60000; ++i) {
    if (i % 7919 == 0) places.push_back(file.place());
    REQUIRE(file.next());
    if (file.fields()[0] != std::to_string(i)) FAIL("row " << i << " is " << file.fields()[0]);
    if (file.line() != 2 + 2 * i) FAIL("row " << i << " is in line " << file.line());
  }
  CHECK_FALSE(file.next());
  for (size_t i = places.size(); i-- > 0;) {
    file.seek(places[i]);
    REQUIRE(file.next());
    CHECK(file.fields()[0] == std::to_string(7919 * i));
    CHECK(file.fields()[1] == "some \"text\"\n of row " + std::to_string(7919 * i));
    CHECK(file.line() == static_cast<int64_t>(2 + 2 * 7919 * i));
  }
  file.seek(file.start());
  REQUIRE(file.next());
  CHECK(file.fields()[0] == "0");
}

TEST_CASE("F37: files that are no tables are named with the line and what is wrong") {
  const TemporaryFolder folder;
  const auto error = [&](std::string_view text) {
    write_text(folder / "bad.csv", text);
    return message_of<DataError>([&] { rows_of(folder / "bad.csv"); });
  };
  CHECK_THAT(error(""), ContainsSubstring("bad.csv' is empty"));
  CHECK_THAT(error("\xef\xbb\xbf"), ContainsSubstring("is empty"));
  CHECK_THAT(error("a,b\n1,2\n3\n"),
             ContainsSubstring("line 3 of") && ContainsSubstring("has 1 field, but the header has 2"));
  CHECK_THAT(error("a,b\n\"1\n\",2\n3,4,5\n"), ContainsSubstring("line 4 of") && ContainsSubstring("has 3 fields"));
  CHECK_THAT(error("a,b\n1,\"2\n3,4\n"), ContainsSubstring("line 2 of") && ContainsSubstring("does not end"));
  CHECK_THAT(error("a,b\n1,x\"y\"\n"), ContainsSubstring("line 2 of") && ContainsSubstring("quote inside a field"));
  CHECK_THAT(error("a,b\n1,\"x\"y\n"), ContainsSubstring("text after the closing quote"));
  CHECK_THAT(error("a,b\n1,x\ry\n"), ContainsSubstring("carriage return"));
  CHECK_THAT(error(std::string_view("a,b\n1,\0\n", 8)),
             ContainsSubstring("line 2 of") && ContainsSubstring("zero byte"));
  CHECK_THAT(error(std::string_view("PAR1\x15\0\x15", 7)),
             ContainsSubstring("is a Parquet file") && ContainsSubstring("docs/tables.md"));
  CHECK_THAT(error("a,a\n1,2\n"), ContainsSubstring("names the column 'a' twice"));
  CHECK_THAT(error("a,\n1,2\n"), ContainsSubstring("no name for column 2"));
  CHECK_THAT(error("a,\xff\n1,2\n"), ContainsSubstring("not UTF-8"));
  CHECK_THAT(message_of<DataError>([&] { CsvFile(folder / "none.csv", ','); }), ContainsSubstring("No such file"));
  CHECK_THAT(message_of<DataError>([&] { CsvFile(folder.path(), ','); }), ContainsSubstring("is not one"));
  write_text(folder / "t.csv", "apple,pear\n");
  const CsvFile file(folder / "t.csv", ',');
  CHECK_THAT(message_of<DataError>([&] { (void)file.column("aple"); }), ContainsSubstring("did you mean 'apple'") &&
                                                                            ContainsSubstring("apple, pear") &&
                                                                            !ContainsSubstring("delimiter"));
  write_text(folder / "t.csv", "apple;pear\n");
  CHECK_THAT(message_of<DataError>([&] { (void)CsvFile(folder / "t.csv", ',').column("pear"); }),
             ContainsSubstring("Set data.init_args.delimiter to \";\"."));
}

TEST_CASE("F37: a line without an end is refused before it fills the memory") {
  const TemporaryFolder folder;
  write_text(folder / "long.csv", "a,b\n1,2\n" + std::string(size_t{100} << 20, 'x'));
  CsvFile file(folder / "long.csv", ',');
  REQUIRE(file.next());
  CHECK_THAT(message_of<DataError>([&] { file.next(); }),
             ContainsSubstring("line 3 of") && ContainsSubstring("longer than 16777216 bytes"));
}

TEST_CASE("the rows of several files come one file after the other, with the columns found by name in each") {
  const TemporaryFolder folder;
  write_text(folder / "1.csv", "a,b\n1,2\n");
  write_text(folder / "2.csv", "c,b,a\n");
  write_text(folder / "3.csv", "b,a\n4,3\n6,5\n");
  tables::TableRows rows({folder / "1.csv", folder / "2.csv", folder / "3.csv"}, ',', {"b", "a"});
  std::vector<std::string> cells;
  std::vector<tables::RowPlace> places = {rows.place()};
  while (rows.next()) {
    cells.push_back(std::string(rows.cell(0)) + std::string(rows.cell(1)));
    places.push_back(rows.place());
  }
  CHECK(cells == std::vector<std::string>{"21", "43", "65"});
  rows.seek(places[2]);
  REQUIRE(rows.next());
  CHECK(rows.cell(0) == "6");
  rows.seek(places[0]);
  REQUIRE(rows.next());
  CHECK(rows.cell(0) == "2");
  CHECK_THROWS_AS(rows.seek({3, {}}), DataError);
  rows.restart();
  REQUIRE(rows.next());
  CHECK_THAT(message_of<DataError>([&] { rows.fail(0, "a reason."); }),
             ContainsSubstring("line 2 of") && ContainsSubstring("1.csv', column 'b': a reason."));
  CHECK_THROWS_AS(tables::TableRows({folder / "1.csv"}, ',', {"c"}), DataError);
}

}  // namespace csv_file_test
