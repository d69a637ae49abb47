#include "reading/row_reader.h"

#include <sys/stat.h>

#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <limits>
#include <map>
#include <random>

#include "fulgur/core/text/errors.h"
#include "support/expect_error.h"
#include "support/temporary_folder.h"

using namespace fulgur::test;

namespace row_reader_test {

using fulgur::DataError;
using fulgur::history::Row;
using fulgur::history::RowReader;

struct Seen {
  int64_t step;
  double epoch;
  std::map<std::string, double> values;
};

std::vector<Seen> read(RowReader& reader, bool whole = false) {
  std::vector<Seen> rows;
  reader.read(
      [&](const Row& row) {
        rows.push_back({row.step, row.epoch, {}});
        for (const auto& cell : row.cells) rows.back().values[reader.names().at(cell.column)] = cell.value;
      },
      whole);
  return rows;
}

std::vector<Seen> read_text_as(const char* name, const std::string& text) {
  const TemporaryFolder folder;
  write_text(folder / name, text);
  RowReader reader(folder / name);
  return read(reader, true);
}

void append(const std::filesystem::path& file, const std::string& text) {
  std::ofstream(file, std::ios::app | std::ios::binary) << text;
}

TEST_CASE("a table has the numbers that CsvLogger writes, and empty fields are no values") {
  const auto rows = read_text_as("metrics.csv",
                                 "step,epoch,\"a,b\"\"c\",loss\n"
                                 "4,0,,2.5\n"
                                 "8,1,nan,-inf\n"
                                 "-3,,1e-05,\n");
  REQUIRE(rows.size() == 3);
  CHECK(rows[0].step == 4);
  CHECK(rows[0].epoch == 0);
  CHECK(rows[0].values == std::map<std::string, double>{{"loss", 2.5}});
  CHECK(std::isnan(rows[1].values.at("a,b\"c")));
  CHECK(rows[1].values.at("loss") == -std::numeric_limits<double>::infinity());
  CHECK(rows[2].step == -3);
  CHECK(std::isnan(rows[2].epoch));
  CHECK(rows[2].values == std::map<std::string, double>{{"a,b\"c", 1e-05}});
}

TEST_CASE("JSON lines have the numbers that JsonlLogger writes, with names in any order") {
  const auto rows = read_text_as("metrics.jsonl",
                                 "{\"step\":4,\"epoch\":0,\"loss\":2.5}\n"
                                 "{\"acc\":\"NaN\",\"loss\":\"-Infinity\",\"step\":5}\n"
                                 "{\"step\":6,\"a\\\"\\u00e9\\ud83d\\ude00\\n\":1e3,\"gone\":null}\n");
  REQUIRE(rows.size() == 3);
  CHECK(rows[0].values == std::map<std::string, double>{{"loss", 2.5}});
  CHECK(std::isnan(rows[1].epoch));
  CHECK(std::isnan(rows[1].values.at("acc")));
  CHECK(rows[1].values.at("loss") == -std::numeric_limits<double>::infinity());
  CHECK(rows[2].values == std::map<std::string, double>{{"a\"é😀\n", 1000}});
}

TEST_CASE("a damaged row is named with its line") {
  const auto message = [](const char* name, const std::string& text) {
    return message_of<DataError>([&] { read_text_as(name, text); });
  };
  const std::string head = "step,epoch,loss\n1,0,1\n";
  using Catch::Matchers::ContainsSubstring;
  CHECK_THAT(message("metrics.csv", head + "2,0,x1\n"), ContainsSubstring("line 3") && ContainsSubstring("'x1'"));
  CHECK_THAT(message("metrics.csv", head + "2,0\n"), ContainsSubstring("fewer fields than the 3"));
  CHECK_THAT(message("metrics.csv", head + "2,0,1,1\n"), ContainsSubstring("more fields than the 3"));
  CHECK_THAT(message("metrics.csv", head + "a,0,1\n"), ContainsSubstring("has no step"));
  CHECK_THAT(message("metrics.csv", head + "\n"), ContainsSubstring("has no step"));
  CHECK_THAT(message("metrics.csv", head + "2,0,1"), ContainsSubstring("line 3") && ContainsSubstring("not complete"));
  CHECK_THAT(message("metrics.csv", "time,loss\n1,2\n"), ContainsSubstring("column 'step'"));
  for (const char* line :
       {"", "{", "[1]", "{\"step\":1}x", "{\"step\":1,}", "{\"step\":1,\"a\":[1]}", "{\"step\":1,\"a\":\"b\"}",
        "{\"step\":1,\"a\":inf}", "{\"step\":1.5}", "{\"a\":1}", "{\"step\":1,\"a\\ud83d\":1}", "{\"step\":1,\"a"})
    CHECK_THAT(message("metrics.jsonl", std::string("{\"step\":1}\n") + line + "\n"), ContainsSubstring("line 2"));
}

TEST_CASE("rows are read once while the file grows, and a row that is not complete is left for later") {
  const TemporaryFolder folder;
  const auto file = folder / "metrics.csv";
  RowReader reader(file);
  CHECK(read(reader).empty());
  write_text(file, "step,epoch,lo");
  CHECK(read(reader).empty());
  append(file, "ss\n1,0,1\n2,0,1");
  auto rows = read(reader);
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].step == 1);
  append(file, "5\n3,0,2\n");
  rows = read(reader);
  REQUIRE(rows.size() == 2);
  CHECK(rows[0].values.at("loss") == 15);
  CHECK(reader.starts() == 1);
  CHECK(read(reader, true).empty());
}

TEST_CASE("a file that was replaced or cut is read from its start") {
  const TemporaryFolder folder;
  const auto file = folder / "metrics.csv";
  write_text(file, "step,epoch,loss\n1,0,1\n2,0,2\n");
  RowReader reader(file);
  CHECK(read(reader).size() == 2);
  write_text(folder / "new", "step,epoch,loss,acc\n1,0,1,\n2,0,2,\n3,0,,0.5\n");
  std::filesystem::rename(folder / "new", file);
  CHECK(read(reader).size() == 3);
  CHECK(reader.starts() == 2);
  CHECK(reader.names() == std::vector<std::string>{"loss", "acc"});
  std::filesystem::resize_file(file, 27);
  CHECK(read(reader).size() == 1);
  CHECK(reader.starts() == 3);
}

// As a new file that gets the inode of a removed one.
TEST_CASE("a file whose contents changed is read from its start, even with the same inode and more bytes") {
  const TemporaryFolder folder;
  const auto table = folder / "metrics.csv", lines = folder / "metrics.jsonl";
  RowReader reader(table);
  SECTION("a table with another column") {
    write_text(table, "step,epoch,loss\n1,0,1\n");
    CHECK(read(reader).size() == 1);
    write_text(table, "step,epoch,loss,acc\n1,0,1,\n2,0,,0.5\n");
    CHECK(read(reader).size() == 2);
    CHECK(reader.names() == std::vector<std::string>{"loss", "acc"});
    CHECK(reader.starts() == 2);
  }
  SECTION("a table with the same header and other rows") {
    std::string text = "step,epoch,loss\n";
    for (int step = 1; step <= 1000; ++step) text += std::to_string(step) + ",0,1\n";
    write_text(table, text);
    CHECK(read(reader).size() == 1000);
    CHECK(read(reader).empty());
    write_text(table, "step,epoch,loss\n" + std::string(2000, '0') + "1,0,1\n" + text.substr(16));
    CHECK(read(reader).size() == 1001);
    CHECK(reader.starts() == 2);
  }
  SECTION("lines that were cut and have grown again") {
    RowReader others(lines);
    write_text(lines, "{\"step\":1,\"a\":1}\n{\"step\":2,\"a\":2}\n");
    CHECK(read(others).size() == 2);
    write_text(lines, "{\"step\":1,\"a\":1}\n{\"step\":2,\"b\":3}\n{\"step\":3,\"b\":4}\n");
    CHECK(read(others).size() == 3);
    CHECK(others.names() == std::vector<std::string>{"a", "b"});
  }
  SECTION("a table of which nothing but the header was read") {
    write_text(table, "step,epoch,loss\n");
    CHECK(read(reader).empty());
    write_text(table, "step,epoch,acc,loss\n1,0,2,3\n");
    CHECK(read(reader).at(0).values == std::map<std::string, double>{{"acc", 2}, {"loss", 3}});
  }
}

TEST_CASE("rows that cross the blocks in which the file is read are whole") {
  const TemporaryFolder folder;
  for (const char* name : {"metrics.csv", "metrics.jsonl"}) {
    const bool csv = std::string(name).ends_with("csv");
    std::mt19937_64 random(7);
    std::string text = csv ? "step,epoch,loss\n" : "";
    std::vector<double> values;
    while (text.size() < 3'000'000) {
      values.push_back(std::uniform_real_distribution<double>(-1, 1)(random));
      char number[64];
      std::snprintf(number, sizeof number, "%.17g", values.back());
      const std::string step = std::to_string(values.size());
      text += csv ? step + ",0," + number + "\n" : "{\"step\":" + step + ",\"epoch\":0,\"loss\":" + number + "}\n";
    }
    write_text(folder / name, text);
    RowReader reader(folder / name);
    size_t count = 0;
    bool equal = true;
    reader.read([&](const Row& row) { equal = equal && row.cells.at(0).value == values.at(count++); });
    CHECK(equal);
    CHECK(count == values.size());
  }
}

TEST_CASE("a folder or a fifo in place of a log is an error and does not block") {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "metrics.csv");
  REQUIRE(::mkfifo((folder / "metrics.jsonl").c_str(), 0600) == 0);
  for (const char* name : {"metrics.csv", "metrics.jsonl"}) {
    RowReader reader(folder / name);
    CHECK_THROWS_AS(read(reader), DataError);
  }
}

}  // namespace row_reader_test
