#include "words/gpt4_words.h"

#include "unicode/characters.h"

namespace fulgur::detail {
namespace {

// `'s`, `'t`, `'re`, `'ve`, `'m`, `'ll` or `'d` in either case; `begin` if there is none. U+017F is an s.
size_t any_case_contraction_end(std::string_view text, size_t begin) {
  const auto letter = [&](size_t at) {
    if (at >= text.size()) return '\0';
    return text[at] >= 'A' && text[at] <= 'Z' ? static_cast<char>(text[at] + ('a' - 'A')) : text[at];
  };
  const char first = letter(begin + 1), second = letter(begin + 2);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return begin + 2;
  if (text.substr(begin + 1).starts_with("\xc5\xbf")) return begin + 3;
  const bool two = ((first == 'r' || first == 'v') && second == 'e') || (first == 'l' && second == 'l');
  return two ? begin + 3 : begin;
}

// Past the characters of a class, at most `most` of them.
size_t run_end(std::string_view text, size_t at, CharacterClass kind, int most = -1) {
  for (int count = 0; at < text.size() && count != most; ++count) {
    size_t after = at;
    if (class_of(next_character(text, after)) != kind) break;
    at = after;
  }
  return at;
}

bool is_line_end(char c) { return c == '\r' || c == '\n'; }

// White space that no word has taken: up to its last line end; else all but the last character, which is left to the
// word that follows.
size_t space_end(std::string_view text, size_t begin) {
  size_t at = begin, last = begin, line_end = begin;
  while (at < text.size()) {
    size_t after = at;
    if (class_of(next_character(text, after)) != CharacterClass::space) break;
    if (is_line_end(text[at])) line_end = after;
    last = at;
    at = after;
  }
  if (line_end > begin) return line_end;
  return at < text.size() && last > begin ? last : at;
}

}  // namespace

size_t gpt4_word_end(std::string_view text, size_t begin, int most_digits) {
  if (text[begin] == '\'')
    if (const size_t end = any_case_contraction_end(text, begin); end > begin) return end;
  size_t at = begin;
  const CharacterClass kind = class_of(next_character(text, at));
  if (kind == CharacterClass::letter) return run_end(text, at, kind);
  if (kind == CharacterClass::number) return run_end(text, begin, kind, most_digits);
  // A character in front of letters belongs to them.
  if (!is_line_end(text[begin]))
    if (const size_t end = run_end(text, at, CharacterClass::letter); end > at) return end;
  if (kind == CharacterClass::other || text[begin] == ' ') {
    size_t end = run_end(text, at, CharacterClass::other);
    if (kind == CharacterClass::other || end > at) {
      while (end < text.size() && is_line_end(text[end])) ++end;
      return end;
    }
  }
  return space_end(text, begin);
}

}  // namespace fulgur::detail
