#include "columns/cell_text.h"

#include <chrono>
#include <cmath>

#include "fulgur/core/text/text.h"

namespace fulgur::tables {
namespace {

/// The number of `digits` digits at the beginning of `text`, which loses them.
std::optional<int> take_digits(std::string_view& text, size_t digits) {
  if (text.size() < digits || !all_digits(text.substr(0, digits))) return std::nullopt;
  const auto number = parse_whole<int>(text.substr(0, digits));
  text.remove_prefix(digits);
  return number;
}

bool take_char(std::string_view& text, std::string_view any_of) {
  if (text.empty() || any_of.find(text.front()) == std::string_view::npos) return false;
  text.remove_prefix(1);
  return true;
}

std::optional<double> take_fraction(std::string_view& text) {
  double value = 0, unit = 0.1;
  size_t digits = 0;
  for (; digits < text.size() && text[digits] >= '0' && text[digits] <= '9'; ++digits, unit /= 10)
    value += unit * (text[digits] - '0');
  if (digits == 0) return std::nullopt;
  text.remove_prefix(digits);
  return value;
}

}  // namespace

std::optional<double> parse_number(std::string_view text) {
  // std::from_chars accepts no plus sign.
  if (text.size() > 1 && text.front() == '+' && text[1] != '-' && text[1] != '+') text.remove_prefix(1);
  const auto number = parse_whole<double>(text);
  return number && std::isfinite(*number) ? number : std::nullopt;
}

std::optional<double> parse_datetime(std::string_view text) {
  const auto year = take_digits(text, 4);
  if (!year || !take_char(text, "-")) return std::nullopt;
  const auto month = take_digits(text, 2);
  if (!month || !take_char(text, "-")) return std::nullopt;
  const auto day = take_digits(text, 2);
  if (!day) return std::nullopt;
  const std::chrono::year_month_day date{std::chrono::year(*year), std::chrono::month(static_cast<unsigned>(*month)),
                                         std::chrono::day(static_cast<unsigned>(*day))};
  if (!date.ok()) return std::nullopt;
  double seconds = 0;
  if (take_char(text, " T")) {
    const auto hour = take_digits(text, 2);
    if (!hour || *hour > 23 || !take_char(text, ":")) return std::nullopt;
    const auto minute = take_digits(text, 2);
    if (!minute || *minute > 59) return std::nullopt;
    seconds = 3600.0 * *hour + 60.0 * *minute;
    if (take_char(text, ":")) {
      const auto second = take_digits(text, 2);
      if (!second || *second > 60) return std::nullopt;
      seconds += *second;
      if (take_char(text, ".")) {
        const auto fraction = take_fraction(text);
        if (!fraction) return std::nullopt;
        seconds += *fraction;
      }
    }
    if (const bool east = text.starts_with('+'); take_char(text, "+-")) {
      const auto hours = take_digits(text, 2);
      if (!hours || *hours > 23 || !take_char(text, ":")) return std::nullopt;
      const auto minutes = take_digits(text, 2);
      if (!minutes || *minutes > 59) return std::nullopt;
      const double offset = 3600.0 * *hours + 60.0 * *minutes;
      seconds += east ? -offset : offset;
    } else {
      take_char(text, "Z");
    }
  }
  if (!text.empty()) return std::nullopt;
  return static_cast<double>(std::chrono::sys_days(date).time_since_epoch().count()) + seconds / 86400;
}

}  // namespace fulgur::tables
