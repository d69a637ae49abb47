#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "fulgur/core/system/unique_fd.h"
#include "fulgur/core/text/csv_format.h"

namespace fulgur::tables {

/// The place of a record in a file.
struct CsvPlace {
  int64_t byte = 0;
  int64_t line = 1;  ///< its first line, counted from 1
};

/// A CSV file with a header, read record by record in blocks: it keeps one block and one record in memory. Every record
/// has as many fields as the header; lines without a character are skipped if the header has several columns. Errors
/// are DataErrors that name file, line and column.
class CsvFile {
 public:
  /// The longest record that is read.
  static constexpr size_t kLongestRecord = size_t{16} << 20;

  /// Opens the file and reads its header. Throws a DataError for a file that is not a regular one, cannot be read or
  /// has no header, and for a header with an empty name or the same name twice.
  CsvFile(std::filesystem::path path, char delimiter);

  const std::vector<std::string>& header() const { return header_; }
  /// The column of this name; throws a DataError with the nearest names.
  size_t column(const std::string& name) const;
  /// Reads the next record; false at the end of the file.
  bool next();
  /// Of the record, valid until the next call of next or seek.
  const std::vector<std::string_view>& fields() const { return scanner_.fields(); }
  /// First line of the record.
  int64_t line() const { return record_line_; }
  /// The place of the record that next() reads.
  CsvPlace place() const { return {block_start_ + static_cast<int64_t>(at_), line_}; }
  /// Moves to a place that place() returned for this file.
  void seek(const CsvPlace& place);
  /// The place after the header.
  const CsvPlace& start() const { return start_; }
  const std::filesystem::path& path() const { return path_; }
  /// Throws a DataError about a field of the record.
  [[noreturn]] void fail(size_t column, const std::string& what) const;

 private:
  bool read_record();
  void fill();
  [[noreturn]] void fail_line(int64_t line, const std::string& what) const;

  std::filesystem::path path_;
  detail::UniqueFd fd_;
  CsvScanner scanner_;
  std::vector<std::string> header_;
  std::map<std::string, size_t, std::less<>> columns_;  // by name: tables may have many
  std::string block_;
  int64_t block_start_ = 0;  // the byte of the file at which the block begins
  size_t at_ = 0;            // in the block
  bool at_end_ = false;      // the block reaches the end of the file
  int64_t line_ = 1, record_line_ = 1;
  CsvPlace start_;
};

}  // namespace fulgur::tables
