#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizers/tokenizer_parts.h"

namespace fulgur::detail {

/// Finds added tokens in texts: the one that begins first, and of those the longest.
class AddedTokens {
 public:
  struct Pattern {
    std::string content;
    const AddedToken* token;
  };
  explicit AddedTokens(std::vector<Pattern> patterns);

  /// Calls `use_text` with what is between the tokens (never empty) and `use_id` with their ids, in order.
  template <class UseText, class UseId>
  void split(std::string_view text, UseText&& use_text, UseId&& use_id) const {
    size_t begin = 0, at = 0;
    while (const Pattern* found = find(text, at)) {
      size_t start = at, end = at + found->content.size();
      at = end;
      if (found->token->lstrip) start = std::max(space_before(text, start), begin);
      if (found->token->rstrip) end = space_after(text, end);
      if (begin < start) use_text(text.substr(begin, start - begin));
      use_id(found->token->id);
      begin = end;
    }
    if (begin < text.size()) use_text(text.substr(begin));
  }

 private:
  // From `at` on, which is moved to where the token begins.
  const Pattern* find(std::string_view text, size_t& at) const;
  static size_t space_before(std::string_view text, size_t end);
  static size_t space_after(std::string_view text, size_t begin);
  std::vector<Pattern> patterns_;
  std::array<std::vector<size_t>, 256> by_first_byte_;  // the longest first
};

}  // namespace fulgur::detail
