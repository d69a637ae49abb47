#include "unicode/characters.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <new>
#include <vector>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

utf8proc_category_t category_of(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

CharacterClass computed_class(char32_t c) {
  if (is_white_space(c)) return CharacterClass::space;
  switch (category_of(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return CharacterClass::letter;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return CharacterClass::number;
    default:
      return CharacterClass::other;
  }
}

// Bytes of the well-formed character that begins at `at`; 0 if there is none. `bad` is then the length of the sequence
// that one U+FFFD replaces.
size_t well_formed_length(std::string_view text, size_t at, size_t& bad) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0; };
  const unsigned first = static_cast<unsigned char>(text[at]);
  bad = 1;
  if (first < 0x80) return 1;
  const size_t length = first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
  if (length == 0) return 0;
  // The second byte excludes overlong forms, surrogates and numbers above U+10FFFF.
  const unsigned low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const unsigned high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  for (size_t i = 1; i < length; ++i) {
    const unsigned next = byte(at + i);
    if (next < (i == 1 ? low : 0x80u) || next > (i == 1 ? high : 0xbfu)) return 0;
    bad = i + 1;
  }
  return length;
}

void check_utf8proc(utf8proc_ssize_t count) {
  if (count < 0) throw DataError(cat("[text.normalize] utf8proc must accept the text; ", utf8proc_errmsg(count), "."));
}

// The characters of the text, decomposed; UTF8PROC_COMPOSE and UTF8PROC_DECOMPOSE say the same here.
std::vector<utf8proc_int32_t> code_points(std::string_view text, utf8proc_option_t form) {
  std::vector<utf8proc_int32_t> points(text.size() + 16);
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | form);
  for (;;) {
    const utf8proc_ssize_t count = utf8proc_decompose(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                                      static_cast<utf8proc_ssize_t>(text.size()), points.data(),
                                                      static_cast<utf8proc_ssize_t>(points.size()), options);
    check_utf8proc(count);
    const bool fits = static_cast<size_t>(count) <= points.size();
    points.resize(static_cast<size_t>(count));
    if (fits) return points;
  }
}

std::string utf8_of(const std::vector<utf8proc_int32_t>& points) {
  std::string out;
  out.reserve(points.size() + points.size() / 4);
  for (const utf8proc_int32_t point : points) append_character(out, static_cast<char32_t>(point));
  return out;
}

}  // namespace

bool is_white_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
  if (c < 0x1680) return c == 0x85 || c == 0xa0;
  return c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

CharacterClass class_of(char32_t c) {
  static const std::array<CharacterClass, 128> ascii = [] {
    std::array<CharacterClass, 128> table{};
    for (size_t i = 0; i < table.size(); ++i) table[i] = computed_class(static_cast<char32_t>(i));
    return table;
  }();
  return c < 128 ? ascii[c] : computed_class(c);
}

bool is_bert_punctuation(char32_t c) {
  if (c < 0x80)
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
  switch (category_of(c)) {
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
      return true;
    default:
      return false;
  }
}

bool is_bert_control(char32_t c) {
  if (c == '\t' || c == '\n' || c == '\r') return false;
  if (c < 0x80) return c < 0x20 || c == 0x7f;
  const utf8proc_category_t category = category_of(c);
  return category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CF || category == UTF8PROC_CATEGORY_CO;
}

bool is_nonspacing_mark(char32_t c) { return c >= 0x300 && category_of(c) == UTF8PROC_CATEGORY_MN; }

bool is_chinese(char32_t c) {
  // As Hugging Face has it: its sixth range begins later than that of the original BERT (U+2B820).
  return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) || (c >= 0x20000 && c <= 0x2a6df) ||
         (c >= 0x2a700 && c <= 0x2b73f) || (c >= 0x2b740 && c <= 0x2b81f) || (c >= 0x2b920 && c <= 0x2ceaf) ||
         (c >= 0xf900 && c <= 0xfaff) || (c >= 0x2f800 && c <= 0x2fa1f);
}

void append_lower_case(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c);
  } else if (c == 0x130) {
    out += "i\xcc\x87";  // the only character with two in lower case; utf8proc knows the first one
  } else {
    append_character(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
  }
}

char32_t next_character(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  if (first < 0x80) {
    ++at;
    return first;
  }
  const size_t length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  char32_t c = first & (0x7fu >> length);
  for (size_t i = 1; i < length; ++i) c = c << 6 | (byte(at + i) & 0x3fu);
  at += length;
  return c;
}

void append_character(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
    return;
  }
  const int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
  out += static_cast<char>((0xff00u >> (more + 1) & 0xffu) | (c >> (6 * more)));
  for (int i = more - 1; i >= 0; --i) out += static_cast<char>(0x80u | (c >> (6 * i) & 0x3fu));
}

std::string decomposed(std::string_view text) { return utf8_of(code_points(text, UTF8PROC_DECOMPOSE)); }

std::optional<std::string> composed(std::string_view text) {
  // U+0300, the first character that composition changes, begins with 0xcc.
  if (std::ranges::none_of(text, [](char c) { return static_cast<unsigned char>(c) >= 0xcc; })) return std::nullopt;
  std::vector<utf8proc_int32_t> points = code_points(text, UTF8PROC_COMPOSE);
  const auto count = utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(points.size()),
                                              static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  check_utf8proc(count);
  points.resize(static_cast<size_t>(count));
  return utf8_of(points);
}

size_t first_invalid_byte(std::string_view text) {
  size_t at = 0, bad = 0;
  while (at < text.size()) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const size_t length = well_formed_length(text, at, bad);
    if (length == 0) return at;
    at += length;
  }
  return std::string_view::npos;
}

void require_utf8(std::string_view text, std::string_view what, uint64_t offset) {
  const size_t at = first_invalid_byte(text);
  if (at == std::string_view::npos) return;
  const unsigned byte = static_cast<unsigned char>(text[at]);
  constexpr std::string_view kDigits = "0123456789abcdef";
  throw DataError(cat(what, " must be UTF-8; byte ", offset + at, " (0x", kDigits[byte >> 4], kDigits[byte & 15],
                      ") is not part of a character. Convert the text, for example with `iconv -t UTF-8`."));
}

std::string with_replacements(std::string_view text) {
  std::string out;
  size_t bad = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t length = well_formed_length(text, at, bad);
    if (length == 0)
      out += "\xef\xbf\xbd";
    else
      out.append(text, at, length);
    at += length == 0 ? bad : length;
  }
  return out;
}

size_t last_word_border(std::string_view text, std::string_view before, bool punctuation_takes_line_ends) {
  for (size_t at = text.size(); at-- > 1;) {
    if (before.find(text[at]) == std::string_view::npos) continue;
    size_t begin = at - 1;
    while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80 && at - begin < 4) --begin;
    size_t bad = 0, next = begin;
    // What is not UTF-8 is refused later, with its position.
    if (well_formed_length(text, begin, bad) != at - begin) return at;
    const CharacterClass kind = class_of(next_character(text, next));
    const bool is_inside = punctuation_takes_line_ends && text[at] == '\n' && kind == CharacterClass::other;
    if (kind != CharacterClass::space && !is_inside) return at;
  }
  return 0;
}

}  // namespace fulgur::detail
