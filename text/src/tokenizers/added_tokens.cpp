#include "tokenizers/added_tokens.h"

#include <utility>

#include "unicode/characters.h"

namespace fulgur::detail {

AddedTokens::AddedTokens(std::vector<Pattern> patterns) : patterns_(std::move(patterns)) {
  for (size_t i = 0; i < patterns_.size(); ++i)
    if (!patterns_[i].content.empty()) by_first_byte_[static_cast<unsigned char>(patterns_[i].content[0])].push_back(i);
  for (std::vector<size_t>& same : by_first_byte_)
    std::ranges::stable_sort(
        same, [&](size_t a, size_t b) { return patterns_[a].content.size() > patterns_[b].content.size(); });
}

const AddedTokens::Pattern* AddedTokens::find(std::string_view text, size_t& at) const {
  if (patterns_.empty()) return nullptr;
  for (; at < text.size(); ++at)
    for (const size_t i : by_first_byte_[static_cast<unsigned char>(text[at])])
      if (text.substr(at).starts_with(patterns_[i].content)) return &patterns_[i];
  return nullptr;
}

size_t AddedTokens::space_before(std::string_view text, size_t end) {
  while (end > 0) {
    size_t begin = end - 1;
    while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) --begin;
    size_t next = begin;
    if (!is_white_space(next_character(text, next))) break;
    end = begin;
  }
  return end;
}

size_t AddedTokens::space_after(std::string_view text, size_t begin) {
  for (size_t next = begin; next < text.size(); begin = next)
    if (!is_white_space(next_character(text, next))) break;
  return begin;
}

}  // namespace fulgur::detail
