#include "words/bert_words.h"

#include <algorithm>

namespace fulgur::detail {

std::string normalized(std::string_view text, const BertNormalization& how) {
  std::string clean;
  clean.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_character(text, at);
    if (how.clean_text && (c == 0xfffd || is_bert_control(c))) continue;
    const bool chinese = how.handle_chinese_chars && is_chinese(c);
    if (chinese) clean += ' ';
    if (how.clean_text && is_white_space(c))
      clean += ' ';
    else
      append_character(clean, c);
    if (chinese) clean += ' ';
  }
  const bool ascii = std::ranges::none_of(clean, [](char c) { return static_cast<unsigned char>(c) >= 0x80; });
  if (how.strip_accents && !ascii) clean = decomposed(clean);
  if (!how.lowercase && (ascii || !how.strip_accents)) return clean;
  std::string out;
  out.reserve(clean.size());
  for (size_t at = 0; at < clean.size();) {
    const char32_t c = next_character(clean, at);
    if (how.strip_accents && is_nonspacing_mark(c)) continue;
    if (how.lowercase)
      append_lower_case(out, c);
    else
      append_character(out, c);
  }
  return out;
}

}  // namespace fulgur::detail
