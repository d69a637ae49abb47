#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fulgur {

/// A field as RFC 4180 writes it: quoted where it holds a comma, a quote, a line break or space at an end.
std::string csv_field(std::string_view text);
/// Fields, commas and a line feed.
std::string csv_row(const std::vector<std::string>& fields);
/// The record that begins at `position`, which then is behind it; nothing where the text ends before the record does.
std::optional<std::vector<std::string>> read_csv_row(std::string_view text, size_t& position);
/// Shortest text that reads back as `value`; `nan`, `inf`, `-inf` as most readers of CSV know them.
std::string csv_number(double value);

}  // namespace fulgur
