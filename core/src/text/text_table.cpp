#include "fulgur/core/text/text_table.h"

#include <algorithm>
#include <clocale>
#include <cwchar>

namespace fulgur {
namespace {

/// glibc's tables of character widths, whatever locale the process has.
class Utf8Locale {
 public:
  Utf8Locale() : before_(utf8() ? uselocale(utf8()) : nullptr) {}
  ~Utf8Locale() {
    if (before_) uselocale(before_);
  }
  Utf8Locale(const Utf8Locale&) = delete;
  Utf8Locale& operator=(const Utf8Locale&) = delete;

 private:
  static locale_t utf8() {
    static const locale_t made = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
    return made;
  }
  locale_t before_;
};

}  // namespace

TextExtent fit_columns(std::string_view text, int64_t columns) {
  const Utf8Locale locale;
  TextExtent extent;
  std::mbstate_t state{};
  while (extent.bytes < text.size()) {
    wchar_t character = 0;
    size_t bytes = std::mbrtowc(&character, text.data() + extent.bytes, text.size() - extent.bytes, &state);
    int64_t width = 1;
    if (bytes == 0 || bytes > text.size()) {  // a zero, or not UTF-8
      state = {};
      bytes = 1;
    } else {
      width = std::max(wcwidth(character), 0);
    }
    if (extent.columns + width > columns) break;
    extent.columns += width;
    extent.bytes += bytes;
  }
  return extent;
}

std::string padded(std::string_view text, int64_t columns) {
  return std::string(text) + std::string(static_cast<size_t>(std::max<int64_t>(columns - columns_of(text), 0)), ' ');
}

std::vector<int64_t> column_widths(const std::vector<TextRow>& rows) {
  std::vector<int64_t> widths;
  for (const TextRow& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], columns_of(row[i]));
  }
  return widths;
}

std::string aligned(const TextRow& row, const std::vector<int64_t>& widths, std::string_view separator) {
  std::string line;
  for (size_t i = 0; i < row.size(); ++i) {
    if (i > 0) line += separator;
    line += i + 1 < row.size() ? padded(row[i], widths.at(i)) : row[i];
  }
  return line;
}

std::string aligned_lines(const std::vector<TextRow>& rows) {
  const std::vector<int64_t> widths = column_widths(rows);
  std::string lines;
  for (const TextRow& row : rows) lines += aligned(row, widths) + "\n";
  return lines;
}

}  // namespace fulgur
