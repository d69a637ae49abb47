#include "fulgur/core/text/csv_format.h"

#include <cmath>

#include "fulgur/core/text/text.h"

namespace fulgur {

std::string csv_field(std::string_view text) {
  const bool space = !text.empty() && (text.front() == ' ' || text.back() == ' ');
  if (!space && text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + '"';
}

std::string csv_row(const std::vector<std::string>& fields) {
  std::string row;
  for (size_t i = 0; i < fields.size(); ++i) {
    if (i > 0) row += ',';
    row += csv_field(fields[i]);
  }
  return row + '\n';
}

std::optional<std::vector<std::string>> read_csv_row(std::string_view text, size_t& position) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (size_t i = position; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c != '"')
        fields.back() += c;
      else if (i + 1 < text.size() && text[i + 1] == '"')
        fields.back() += text[i++];
      else
        quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == ',') {
      fields.emplace_back();
    } else if (c == '\n') {
      position = i + 1;
      return fields;
    } else if (c != '\r' || i + 1 == text.size() || text[i + 1] != '\n') {
      fields.back() += c;
    }
  }
  return std::nullopt;
}

std::string csv_number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return format_double(value);
}

}  // namespace fulgur
