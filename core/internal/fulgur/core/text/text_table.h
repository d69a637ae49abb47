#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "fulgur/core/export.h"

/// Texts in columns of a terminal. A wide character (CJK, emoji) takes two columns, a combining one none.
namespace fulgur {

struct TextExtent {
  size_t bytes = 0;
  int64_t columns = 0;
};

/// How much of `text`, UTF-8, fits into `columns`.
FULGUR_API TextExtent fit_columns(std::string_view text, int64_t columns);

inline int64_t columns_of(std::string_view text) {
  return fit_columns(text, std::numeric_limits<int64_t>::max()).columns;
}

/// `text`, filled with spaces up to `columns`.
FULGUR_API std::string padded(std::string_view text, int64_t columns);

using TextRow = std::vector<std::string>;

/// The width of each column of `rows`, which may have different lengths.
FULGUR_API std::vector<int64_t> column_widths(const std::vector<TextRow>& rows);

/// A row with its cells padded to `widths`; the last cell is not padded.
FULGUR_API std::string aligned(const TextRow& row, const std::vector<int64_t>& widths,
                               std::string_view separator = "  ");

/// The rows as lines, with their columns aligned.
FULGUR_API std::string aligned_lines(const std::vector<TextRow>& rows);

}  // namespace fulgur
