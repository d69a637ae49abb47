#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/core/state/tensor.h"

namespace fulgur {

/// Tokens of a text and their indices: its bytes, or its characters (Unicode code points) in sorted order.
class FULGUR_API TextVocabulary {
 public:
  /// The vocabulary of the 256 bytes.
  static TextVocabulary bytes();
  /// The vocabulary of the distinct characters of `text`. Throws a DataError if it is not UTF-8.
  static TextVocabulary characters_of(std::string_view text);

  int64_t size() const;
  bool is_bytes() const { return characters_.empty(); }
  /// All characters in index order, as UTF-8; empty for bytes. `characters_of` of it gives this vocabulary.
  std::string characters() const;
  /// Returns a tensor (tokens), uint8 if the vocabulary has at most 256 entries, else int32. Throws a DataError that
  /// names a character missing from the vocabulary, and its position.
  Tensor encode(std::string_view text) const;
  /// Returns the text of tokens of any integer dtype and shape, in row order. Throws a DataError for one out of range.
  std::string decode(const Tensor& tokens) const;

 private:
  std::vector<char32_t> characters_;
  std::unordered_map<char32_t, int32_t> numbers_;
};

}  // namespace fulgur
