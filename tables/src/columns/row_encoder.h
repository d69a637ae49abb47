#pragma once

#include <memory>
#include <vector>

#include "columns/table_schema.h"
#include "fulgur/core/state/batch.h"
#include "reading/table_rows.h"

namespace fulgur::tables {

/// Rows of a table as tensors.
class RowEncoder {
 public:
  /// Without targets, batches have no `target`.
  RowEncoder(TableSchema schema, const TableDataModule::Options& options, bool with_targets);

  /// The columns that rows must have, in the order that `encode` expects.
  std::vector<std::string> columns() const { return schema_.columns(with_targets_); }
  /// `numbers` (rows, F) float32, `categories` (rows, C) int64 and `target`, not initialised.
  Batch empty(int64_t rows) const;
  /// Writes the current row of `rows` to row `row` of `out`. Throws a DataError for cells of the wrong kind.
  void encode(const TableRows& rows, Batch& out, int64_t row) const;
  /// All rows of the files, which must be `count`.
  Batch encode_all(const std::vector<std::filesystem::path>& paths, int64_t count) const;

 private:
  void warn_of_unknown(const Tensor& categories, const std::filesystem::path& file) const;

  TableSchema schema_;
  char delimiter_;
  bool refuses_blanks_, with_targets_;
  BlankTexts blanks_;
  std::vector<TextNumbers> categories_;
  TextNumbers classes_;
};

}  // namespace fulgur::tables
