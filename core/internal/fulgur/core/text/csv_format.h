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
/// The record that starts at `position`, which is then moved past it; nullopt if the text ends before the record does.
std::optional<std::vector<std::string>> read_csv_row(std::string_view text, size_t& position);
/// Shortest text that reads back as `value`; `nan`, `inf`, `-inf` as understood by most CSV readers.
FULGUR_API std::string csv_number(double value);

}  // namespace fulgur
