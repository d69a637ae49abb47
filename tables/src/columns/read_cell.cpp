#include "columns/read_cell.h"

#include "columns/cell_text.h"
#include "fulgur/core/text/text.h"

namespace fulgur::tables {

std::string shown_cell(std::string_view text) {
  constexpr size_t kMost = 60;
  // A cut may be inside a character; controls are escaped anyway.
  return cat("'", escape_controls(text.substr(0, kMost)), text.size() > kMost ? "…'" : "'");
}

void fail_blank(const TableRows& rows, size_t column) {
  rows.fail(column, "a number is expected; the cell is blank. Fill it, or set data.init_args.blank_numbers.");
}

std::optional<double> read_number(const TableRows& rows, size_t column, ColumnType type, const BlankTexts& blanks,
                                  std::string_view advice) {
  const std::string_view text = trimmed(rows.cell(column));
  if (blanks.contains(text)) return std::nullopt;
  const bool is_date = type == ColumnType::datetime;
  const std::optional<double> value = is_date ? parse_datetime(text) : parse_number(text);
  if (!value)
    rows.fail(column, cat(is_date ? "a date such as 2024-02-29 or 2024-02-29T23:59:00Z" : "a finite number",
                          " is expected; got ", shown_cell(text), ". ", advice));
  return value;
}

std::string_view read_category(const TableRows& rows, size_t column, const BlankTexts& blanks) {
  const std::string_view text = trimmed(rows.cell(column));
  if (blanks.contains(text)) return {};
  if (!is_utf8(text)) rows.fail(column, cat("a category must be UTF-8; got ", shown_cell(text), ". Convert the file."));
  return text;
}

double read_target(const TableRows& rows, size_t column, const BlankTexts& blanks) {
  const std::optional<double> value =
      read_number(rows, column, ColumnType::number, blanks,
                  "Correct the cell or, to predict one of several texts, set data.init_args.task: classification.");
  if (!value) rows.fail(column, "a target must be a number; the cell is blank. Remove the row or fill the cell.");
  return *value;
}

std::string_view read_class(const TableRows& rows, size_t column, const BlankTexts& blanks) {
  const std::string_view text = read_category(rows, column, blanks);
  if (text.empty()) rows.fail(column, "a class must not be blank. Remove the row or fill the cell.");
  return text;
}

}  // namespace fulgur::tables
