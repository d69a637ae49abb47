#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "columns/table_schema.h"
#include "reading/table_rows.h"

namespace fulgur::tables {

/// What to do about a cell of a table's feature that is no number.
inline constexpr std::string_view kFeatureAdvice =
    "Correct the cell, add its text to data.init_args.blank_values, or set the column's type in data.init_args.types.";

/// A cell of the current row as a number; nullopt for a blank. A cell that is neither is a DataError with its line and
/// column, which ends with `advice`.
std::optional<double> read_number(const TableRows& rows, size_t column, ColumnType type, const BlankTexts& blanks,
                                  std::string_view advice = kFeatureAdvice);

/// The text of a category; a blank is the empty text.
std::string_view read_category(const TableRows& rows, size_t column, const BlankTexts& blanks);

/// A target of a regression. Throws a DataError for a blank.
double read_target(const TableRows& rows, size_t column, const BlankTexts& blanks);

/// The text of a class. Throws a DataError for a blank.
std::string_view read_class(const TableRows& rows, size_t column, const BlankTexts& blanks);

/// A cell for messages: in quotes, cut if it is long, with control characters escaped.
std::string shown_cell(std::string_view text);

[[noreturn]] void fail_blank(const TableRows& rows, size_t column);

}  // namespace fulgur::tables
