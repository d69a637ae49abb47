#pragma once

#include <charconv>
#include <concepts>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fulgur/core/export.h"

namespace fulgur {

/// Shortest text that reads back as exactly `value`, always with a point or exponent (`1.0`, `0.1`, `1e-05`),
/// or `.nan`, `.inf`, `-.inf` as YAML writes them.
FULGUR_API std::string format_double(double value);

/// `value` with `digits` decimals, for display.
FULGUR_API std::string format_fixed(double value, int digits);

/// `count` as `123`, `1.2 K`, `2.0 M`, `3.0 B`, `400 T`.
FULGUR_API std::string format_count(int64_t count);

/// `text` with control characters (newline, ESC, …) written as `\n`, `\x1b`; safe for terminals and log lines.
FULGUR_API std::string escape_controls(std::string_view text);

/// `text` as one word of a command that the user can copy to a shell: `a.ckpt`, `'my run/a.ckpt'`. Control characters
/// and bytes that are not UTF-8 are written as in bash and zsh (`$'a\nb'`), so the word is safe for terminals.
FULGUR_API std::string shell_word(std::string_view text);

FULGUR_API bool is_utf8(std::string_view text);

/// The names in `candidates` that may have been meant by `name`, nearest first, at most three.
FULGUR_API std::vector<std::string> nearest_names(std::string_view name, const std::vector<std::string>& candidates);

/// `; did you mean 'a' or 'b'?`, or empty if no candidate is near.
FULGUR_API std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates);

/// The hint as the end of a sentence: a question already ends it.
inline std::string as_sentence(const std::string& hint) { return hint + (hint.ends_with('?') ? " " : ". "); }

inline std::string first_line(std::string_view text) { return std::string(text.substr(0, text.find('\n'))); }

/// Without spaces and tabs at both ends.
inline std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

/// `a, b, c`.
FULGUR_API std::string join(const std::vector<std::string>& parts, std::string_view separator = ", ");

/// The first `most` parts, and `and N more` if there are more.
FULGUR_API std::string join_some(std::vector<std::string> parts, size_t most, std::string_view separator = ", ");

/// The parts between separators; a text without any is one part.
FULGUR_API std::vector<std::string> split_text(std::string_view text, char separator);

/// One or more of the digits 0 to 9, and nothing else.
FULGUR_API bool all_digits(std::string_view text);

/// The number that `text` consists of, as std::from_chars reads it; nullopt for any other text.
template <class Number>
std::optional<Number> parse_whole(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

namespace detail {
inline void append(std::string& out, std::string_view part) { out += part; }
inline void append(std::string& out, const char* part) { out += part; }
inline void append(std::string& out, const std::string& part) { out += part; }
inline void append(std::string& out, char part) { out += part; }
inline void append(std::string& out, bool part) { out += part ? "true" : "false"; }
inline void append(std::string& out, const std::filesystem::path& part) { out += part.string(); }
inline void append(std::string& out, std::floating_point auto part) { out += format_double(static_cast<double>(part)); }
template <std::integral I>
void append(std::string& out, I part) {
  char digits[24];
  auto [end, error] = std::to_chars(digits, digits + sizeof digits, part);
  out.append(digits, end);
}
}  // namespace detail

/// Concatenates texts and numbers to a string, for messages (g++ 12 has no `std::format`).
template <class... Parts>
std::string cat(const Parts&... parts) {
  std::string out;
  (detail::append(out, parts), ...);
  return out;
}

/// `1 batch`, `3 batches`.
inline std::string counted(int64_t count, std::string_view one, std::string_view several) {
  return cat(count, " ", count == 1 ? one : several);
}

/// `1 step`, `3 steps`.
inline std::string counted(int64_t count, std::string_view what) {
  return cat(count, " ", what, count == 1 ? "" : "s");
}

}  // namespace fulgur
