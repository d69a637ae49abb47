#include "options/scalar_text.h"

#include <charconv>
#include <limits>

#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool looks_integer(std::string_view text) {
  const std::string_view digits = without_sign(text);
  return all_digits(digits) && !has_leading_zero(digits);
}

}  // namespace

std::string_view without_sign(std::string_view text) {
  return !text.empty() && (text.front() == '+' || text.front() == '-') ? text.substr(1) : text;
}

bool has_leading_zero(std::string_view unsigned_text) {
  return unsigned_text.size() > 1 && unsigned_text[0] == '0' && is_digit(unsigned_text[1]);
}

bool looks_number(std::string_view text) {
  std::string_view rest = without_sign(text);
  if (has_leading_zero(rest)) return false;
  size_t digits = 0;
  const auto skip_digits = [&] {
    while (!rest.empty() && is_digit(rest.front())) rest.remove_prefix(1), ++digits;
  };
  skip_digits();
  if (!rest.empty() && rest.front() == '.') rest.remove_prefix(1), skip_digits();
  if (digits == 0) return false;
  if (rest.empty()) return true;
  if (rest.front() != 'e' && rest.front() != 'E') return false;
  return all_digits(without_sign(rest.substr(1)));
}

Parsed parse_integer(std::string_view text, int64_t& value) {
  if (!looks_integer(text)) return Parsed::no_number;
  if (text.front() == '+') text.remove_prefix(1);
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  return result.ec == std::errc() ? Parsed::ok : Parsed::too_large;
}

Parsed parse_number(std::string_view text, double& value) {
  const std::string_view rest = without_sign(text);
  if (rest == ".inf" || rest == ".Inf" || rest == ".INF") {
    value = text.front() == '-' ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity();
    return Parsed::ok;
  }
  if (!looks_number(text)) return Parsed::no_number;
  if (text.front() == '+') text.remove_prefix(1);
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  return result.ec == std::errc() ? Parsed::ok : Parsed::too_large;
}

std::optional<bool> parse_bool(std::string_view text) {
  if (text == "true" || text == "True" || text == "TRUE") return true;
  if (text == "false" || text == "False" || text == "FALSE") return false;
  return std::nullopt;
}

}  // namespace fulgur::detail
