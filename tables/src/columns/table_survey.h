#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "columns/table_schema.h"
#include "reading/table_rows.h"

namespace fulgur::tables {

/// The numbers of values of a category or a target, more than any model distinguishes: a column with more of them is no
/// category.
inline constexpr size_t kMostCategories = size_t{1} << 20;

/// What the first pass over a table finds.
struct TableSurvey {
  std::vector<std::pair<std::string, ColumnType>> features;  ///< in the order of the header, without the ignored ones
  int64_t rows = 0;
  std::vector<int64_t> labels;       ///< of each row, as numbers of `classes`; for classification, if asked for
  std::vector<std::string> classes;  ///< in the order of their numbers: sorted
};

/// Reads all rows once: decides the types of columns that `options` does not name, and finds the classes. If
/// `with_labels`, it also keeps the class of each row. Throws a DataError for a column without any value, for names in
/// the options that the table lacks, and for a class that is blank.
TableSurvey survey_table(const TableDataModule::Options& options, bool with_labels);

/// The rows of `paths`.
int64_t count_rows(const std::vector<std::filesystem::path>& paths, char delimiter);

/// The mean, deviation, median and values of all columns over the rows for which `is_training` (called with 0, 1, 2, …)
/// is true. Throws a DataError for cells that are no numbers, with line and column, and if no row is used.
TableSchema fit_schema(const TableDataModule::Options& options, const TableSurvey& survey,
                       const std::function<bool(int64_t)>& is_training);

}  // namespace fulgur::tables
