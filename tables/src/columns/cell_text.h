#pragma once

#include <optional>
#include <string_view>

namespace fulgur::tables {

/// A finite number with a point, an optional exponent and an optional sign; nullopt for any other text.
std::optional<double> parse_number(std::string_view text);

/// Days since 1970-01-01 of `YYYY-MM-DD`, optionally followed by a space or `T` and `HH:MM`, `HH:MM:SS` or
/// `HH:MM:SS.fff`, and then by `Z` or `+HH:MM`. nullopt for any other text and for dates that do not exist.
std::optional<double> parse_datetime(std::string_view text);

}  // namespace fulgur::tables
