#include "words/gpt2_words.h"

#include "unicode/characters.h"

namespace fulgur::detail {
namespace {

size_t contraction_end(std::string_view text, size_t begin) {
  const std::string_view rest = text.substr(begin + 1, 2);
  if (rest.empty()) return begin;
  if (rest[0] == 's' || rest[0] == 't' || rest[0] == 'm' || rest[0] == 'd') return begin + 2;
  return rest == "re" || rest == "ve" || rest == "ll" ? begin + 3 : begin;
}

}  // namespace

size_t gpt2_word_end(std::string_view text, size_t begin) {
  if (text[begin] == '\'')
    if (const size_t end = contraction_end(text, begin); end > begin) return end;
  size_t at = begin;
  CharacterClass kind = class_of(next_character(text, at));
  if (text[begin] == ' ' && at < text.size()) {
    size_t after = at;
    // The space belongs to the word that follows it.
    const CharacterClass next = class_of(next_character(text, after));
    if (next != CharacterClass::space) {
      kind = next;
      at = after;
    }
  }
  size_t last = begin;  // where the last character of the run begins
  while (at < text.size()) {
    size_t after = at;
    if (class_of(next_character(text, after)) != kind) break;
    last = at;
    at = after;
  }
  // The last white space before a word is left to it; a single one is a word.
  const bool leaves_one = kind == CharacterClass::space && at < text.size() && last > begin;
  return leaves_one ? last : at;
}

}  // namespace fulgur::detail
