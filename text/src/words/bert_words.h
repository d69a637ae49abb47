#pragma once

#include <string>
#include <string_view>

#include "unicode/characters.h"

namespace fulgur::detail {

/// Hugging Face's BertNormalizer.
struct BertNormalization {
  bool clean_text = true;            ///< removes control characters; white space becomes a space
  bool handle_chinese_chars = true;  ///< puts spaces around Chinese characters
  bool strip_accents = true;
  bool lowercase = true;
};

std::string normalized(std::string_view text, const BertNormalization& how);

/// Calls `use` with each word: what is between white space, where each punctuation character is a word.
template <class Use>
void for_each_bert_word(std::string_view text, Use&& use) {
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t start = at;
    const char32_t c = next_character(text, at);
    const bool space = is_white_space(c);
    if (!space && !is_bert_punctuation(c)) continue;
    if (start > begin) use(text.substr(begin, start - begin));
    if (!space) use(text.substr(start, at - start));
    begin = at;
  }
  if (begin < text.size()) use(text.substr(begin));
}

}  // namespace fulgur::detail
