#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "reading/csv_file.h"

namespace fulgur::tables {

/// A place in several files.
struct RowPlace {
  size_t file = 0;
  CsvPlace in_file;
};

/// The rows of several CSV files, one file after the other, with the wanted columns found by name in each.
class TableRows {
 public:
  /// Throws a DataError if a file lacks a column.
  TableRows(std::vector<std::filesystem::path> paths, char delimiter, std::vector<std::string> columns);
  /// Before the first row.
  void restart();
  bool next();
  /// The text of wanted column `column` in the row.
  std::string_view cell(size_t column) const { return file_->fields()[places_[column]]; }
  [[noreturn]] void fail(size_t column, const std::string& what) const { file_->fail(places_[column], what); }
  /// The place of the row, for messages: `line 3 of 'table.csv'`.
  std::string line_text() const;
  /// The place of the row that next() reads.
  RowPlace place() const;
  /// Moves to a place that place() returned for these files. Throws a DataError if there is no such file.
  void seek(const RowPlace& place);
  const std::vector<std::filesystem::path>& paths() const { return paths_; }

 private:
  void open(size_t index);
  std::vector<std::filesystem::path> paths_;
  char delimiter_;
  std::vector<std::string> columns_;
  std::vector<size_t> places_;
  size_t index_ = 0;
  std::unique_ptr<CsvFile> file_;
};

}  // namespace fulgur::tables
