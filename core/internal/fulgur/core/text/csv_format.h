#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fulgur/core/export.h"

namespace fulgur {

/// A field according to RFC 4180: quoted if it contains a comma, a quote, a line break, or a space at either end.
std::string csv_field(std::string_view text);
/// Fields, commas and a line feed.
FULGUR_API std::string csv_row(const std::vector<std::string>& fields);

/// What is wrong with a record of a CSV text, or that the text ends before the record does.
enum class CsvFault { none, incomplete, quote_in_field, text_after_quote, lone_return, nul };

/// What is wrong with a line and what to do, for a sentence that begins with `the line`: `contains a zero byte. …`.
FULGUR_API const char* csv_fault_text(CsvFault fault);

/// Reads records of a CSV text one by one, without a copy of fields that have no quotes in them.
class FULGUR_API CsvScanner {
 public:
  /// `strict`: as RFC 4180 says, and without NUL. Otherwise quotes may begin and end inside a field, and each byte is
  /// accepted.
  explicit CsvScanner(char delimiter = ',', bool strict = true);
  /// Reads the record at the beginning of `text`. If `at_end`, the text ends with the file, so that its last record
  /// needs no line feed. After a fault only line_feeds() is set: those before the fault.
  CsvFault scan(std::string_view text, bool at_end);
  /// Valid until the next scan, as long as the text exists.
  const std::vector<std::string_view>& fields() const { return fields_; }
  /// Bytes of the record, with its line end.
  size_t length() const { return length_; }
  /// Line feeds in the record, in its quoted fields and at its end.
  int64_t line_feeds() const { return line_feeds_; }

 private:
  struct Part {
    size_t begin, size;
    bool is_joined;
  };
  char delimiter_;
  bool strict_;
  bool special_[256] = {};
  std::vector<std::string_view> fields_;
  std::vector<Part> parts_;
  std::string joined_;  // the fields whose bytes are not consecutive in the text
  size_t length_ = 0;
  int64_t line_feeds_ = 0;
};

/// The record that starts at `position`, which is then moved past it; nullopt if the text ends before the record does.
std::optional<std::vector<std::string>> read_csv_row(std::string_view text, size_t& position);
/// Shortest text that reads back as `value`; `nan`, `inf`, `-inf` as understood by most CSV readers.
FULGUR_API std::string csv_number(double value);

}  // namespace fulgur
