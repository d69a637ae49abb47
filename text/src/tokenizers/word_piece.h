#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizers/tokenizer_parts.h"

namespace fulgur::detail {

/// WordPiece: the longest token that begins a word, then the longest one that continues it, and so on. A word that
/// cannot be covered is one unknown token.
class WordPiece {
 public:
  /// Refers to `parts`, which must outlive it and not move. Throws a DataError if the unknown token is not in the
  /// vocabulary.
  WordPiece(const TokenizerParts& parts, const std::string& where);
  /// Appends the ids of a word.
  void encode(std::string_view word, std::vector<int32_t>& out) const;

 private:
  using Ids = std::unordered_map<std::string_view, int32_t>;
  Ids first_, continuing_;  // the latter without their prefix
  int64_t most_characters_;
  size_t longest_ = 0;  // bytes of a token
  int32_t unk_ = 0;
};

}  // namespace fulgur::detail
