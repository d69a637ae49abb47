#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/core/state/tensor.h"

namespace fulgur {

/// A picture.
struct ImageRecord {
  std::string name;
  /// (C, H, W) with one (gray), two (gray, alpha), three (RGB) or four (RGBA) channels: uint8, or floating with values
  /// of 0 to 1. Loggers receive uint8 on the CPU, contiguous.
  Tensor pixels;
};
/// The distribution of values.
struct HistogramRecord {
  std::string name;
  /// At least one real number, of any shape. Loggers receive a vector on the CPU, contiguous.
  Tensor values;
};
struct TextRecord {
  std::string name;
  std::string text;  ///< shown as Markdown by TensorBoard
};
using TableCell = std::variant<std::string, double, int64_t>;
struct TableRecord {
  std::string name;
  std::vector<std::string> columns;          ///< at least one
  std::vector<std::vector<TableCell>> rows;  ///< each with one cell per column
};
/// What is logged besides scalars.
using MediaRecord = std::variant<ImageRecord, HistogramRecord, TextRecord, TableRecord>;

FULGUR_API const std::string& media_name(const MediaRecord& record);
/// Throws an Error if the record breaks a rule above, as far as its shape and types tell. Does not wait for a device.
FULGUR_API void check_media(const MediaRecord& record);
/// The record as loggers receive it. Its tensor is on the CPU.
FULGUR_API MediaRecord as_logged(MediaRecord record);

/// The cell as text: numbers in their shortest exact form.
FULGUR_API std::string cell_text(const TableCell& cell);
/// The table in GitHub's Markdown. In cells, `|` is escaped and a line feed becomes `<br>`.
FULGUR_API std::string markdown_table(const TableRecord& table);

}  // namespace fulgur
