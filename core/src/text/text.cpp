#include "fulgur/core/text/text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace fulgur {

namespace {

/// Length of the well-formed UTF-8 sequence that starts at `at`; 0 if there is none.
size_t utf8_length(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  size_t length = 0;
  if (first < 0x80)
    length = 1;
  else if (first >= 0xC2 && first <= 0xDF)
    length = 2;
  else if (first >= 0xE0 && first <= 0xEF)
    length = 3;
  else if (first >= 0xF0 && first <= 0xF4)
    length = 4;
  if (length == 0 || at + length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xC0) != 0x80) return 0;
  }
  // Overlong forms, surrogates, and code points above U+10FFFF.
  if (length > 2) {
    const unsigned char second = byte(at + 1);
    if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F)) return 0;
    if ((first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F)) return 0;
  }
  return length;
}

void append_hex(std::string& out, unsigned char byte) {
  constexpr char kDigits[] = "0123456789abcdef";
  out += "\\x";
  out += kDigits[byte >> 4];
  out += kDigits[byte & 15];
}

/// Case, `-` and `_` are ignored when names are compared.
std::string folded(std::string_view name) {
  std::string out;
  for (char c : name) {
    if (c == '-' || c == '_') continue;
    out += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return out;
}

/// Edits (insert, delete, replace, swap of neighbours) between two names, or `limit + 1` if there are more.
size_t edit_distance(std::string_view a, std::string_view b, size_t limit) {
  if (a.size() > b.size()) std::swap(a, b);
  if (b.size() - a.size() > limit) return limit + 1;
  std::vector<size_t> before(b.size() + 1), row(b.size() + 1), next(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    next[0] = i;
    size_t best = next[0];
    for (size_t j = 1; j <= b.size(); ++j) {
      next[j] = std::min({row[j] + 1, next[j - 1] + 1, row[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        next[j] = std::min(next[j], before[j - 2] + 1);
      best = std::min(best, next[j]);
    }
    if (best > limit) return limit + 1;
    std::swap(before, row);
    std::swap(row, next);
  }
  return row[b.size()];
}

}  // namespace

std::string format_double(double value) {
  if (std::isnan(value)) return ".nan";
  if (std::isinf(value)) return value < 0 ? "-.inf" : ".inf";
  // As Python writes them: an exponent only for very small and very large numbers.
  const double size = std::abs(value);
  const bool fixed = size == 0 || (size >= 1e-4 && size < 1e16);
  std::array<char, 32> digits;
  const auto [end, error] = std::to_chars(digits.data(), digits.data() + digits.size(), value,
                                          fixed ? std::chars_format::fixed : std::chars_format::scientific);
  std::string text(digits.data(), end);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string format_fixed(double value, int digits) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  // 309 digits before the point for the largest double.
  std::string text(static_cast<size_t>(320 + std::max(digits, 0)), '\0');
  const auto [end, error] =
      std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed, std::max(digits, 0));
  text.resize(static_cast<size_t>(end - text.data()));
  return text;
}

std::string format_count(int64_t count) {
  constexpr const char* kUnits[] = {"", " K", " M", " B", " T"};
  double scaled = static_cast<double>(count);
  size_t unit = 0;
  while (std::abs(scaled) >= 1000 && unit + 1 < std::size(kUnits)) {
    scaled /= 1000;
    ++unit;
  }
  if (unit == 0) return cat(count);
  return std::abs(scaled) >= 100 ? cat(static_cast<int64_t>(scaled), kUnits[unit])
                                 : format_fixed(scaled, 1) + kUnits[unit];
}

std::string escape_controls(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const size_t length = utf8_length(text, i);
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == '\n')
      out += "\\n";
    else if (byte == '\t')
      out += "\\t";
    else if (byte == '\r')
      out += "\\r";
    else if (length == 0 || byte < 0x20 || byte == 0x7F)
      append_hex(out, byte);
    // U+0080 to U+009F are control characters too: a terminal takes U+009B as ESC [.
    else if (length == 2 && byte == 0xC2 && static_cast<unsigned char>(text[i + 1]) < 0xA0) {
      append_hex(out, static_cast<unsigned char>(text[i + 1]));
    } else {
      out += text.substr(i, length);
    }
    i += std::max<size_t>(length, 1);
  }
  return out;
}

std::string shell_word(std::string_view text) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:=@%+,-";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string_view::npos) return std::string(text);
  if (escape_controls(text) == text) {
    std::string out = "'";
    for (const char c : text) c == '\'' ? out += "'\\''" : out += c;
    return out + "'";
  }
  std::string out = "$'";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7F) {
      append_hex(out, byte);
    } else {
      if (c == '\'' || c == '\\') out += '\\';
      out += c;
    }
  }
  return out + "'";
}

bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const size_t length = utf8_length(text, i);
    if (length == 0) return false;
    i += length;
  }
  return true;
}

std::vector<std::string> nearest_names(std::string_view name, const std::vector<std::string>& candidates) {
  constexpr size_t kLongestName = 100, kMost = 3;
  if (name.empty() || name.size() > kLongestName) return {};
  const std::string wanted = folded(name);
  const size_t limit = wanted.size() <= 3 ? 1 : 2;
  std::vector<std::pair<size_t, std::string>> near;
  for (const std::string& candidate : candidates) {
    const std::string other = folded(candidate);
    size_t distance = edit_distance(wanted, other, limit);
    if (distance > limit) {
      const bool part = (wanted.size() >= 3 && other.find(wanted) != std::string::npos) ||
                        (other.size() >= 3 && wanted.find(other) != std::string::npos);
      if (!part) continue;
    }
    near.emplace_back(distance, candidate);
  }
  std::ranges::stable_sort(near, [](const auto& a, const auto& b) { return a.first < b.first; });
  if (near.size() > kMost) near.resize(kMost);
  std::vector<std::string> names;
  for (auto& [distance, candidate] : near) names.push_back(std::move(candidate));
  return names;
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates) {
  std::vector<std::string> names = nearest_names(name, candidates);
  if (names.empty()) return {};
  for (std::string& near : names) near = "'" + near + "'";
  return "; did you mean " + join(names, " or ") + "?";
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string out;
  for (const std::string& part : parts) {
    if (&part != &parts.front()) out += separator;
    out += part;
  }
  return out;
}

std::string join_some(std::vector<std::string> parts, size_t most, std::string_view separator) {
  if (const size_t all = parts.size(); all > most)
    parts.resize(most), parts.push_back(cat("and ", all - most, " more"));
  return join(parts, separator);
}

std::vector<std::string> split_text(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

bool all_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

}  // namespace fulgur
