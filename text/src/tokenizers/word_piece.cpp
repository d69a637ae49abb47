#include "tokenizers/word_piece.h"

#include <algorithm>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {

WordPiece::WordPiece(const TokenizerParts& parts, const std::string& where)
    : most_characters_(parts.max_input_chars_per_word) {
  for (const auto& [token, id] : parts.vocab) {
    const std::string_view text = token;
    first_.emplace(text, id);
    if (text.starts_with(parts.continuing_prefix)) continuing_.emplace(text.substr(parts.continuing_prefix.size()), id);
    longest_ = std::max(longest_, text.size());
  }
  const auto unk = first_.find(*parts.unk_token);
  if (unk == first_.end())
    throw DataError(cat("[text.read_tokenizer] ", where, ": the vocabulary must have the unknown token; '",
                        escape_controls(*parts.unk_token), "' is not in it."));
  unk_ = unk->second;
}

void WordPiece::encode(std::string_view word, std::vector<int32_t>& out) const {
  const auto characters =
      std::ranges::count_if(word, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
  const size_t before = out.size();
  const auto is_unknown = [&] {
    out.resize(before);
    out.push_back(unk_);
  };
  if (characters > most_characters_) return is_unknown();
  for (size_t begin = 0; begin < word.size();) {
    const Ids& ids = begin == 0 ? first_ : continuing_;
    size_t length = std::min(longest_, word.size() - begin);
    auto found = ids.end();
    for (; length > 0 && found == ids.end(); --length) found = ids.find(word.substr(begin, length));
    if (found == ids.end()) return is_unknown();
    out.push_back(found->second);
    begin += length + 1;
  }
}

}  // namespace fulgur::detail
