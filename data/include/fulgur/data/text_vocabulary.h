#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/core/tensor.h"

namespace fulgur {

/// Tokens of a text and their numbers: its bytes, or its characters (code points of UTF-8) in their order.
class FULGUR_API TextVocabulary {
 public:
  /// The 256 bytes.
  static TextVocabulary bytes();
  /// The different characters of `text`; throws a DataError where it is not UTF-8.
  static TextVocabulary characters_of(std::string_view text);

  int64_t size() const;
  bool is_bytes() const { return characters_.empty(); }
  /// All characters in the order of their numbers, as UTF-8; empty for bytes. `characters_of` of it is this vocabulary.
  std::string characters() const;
  /// (tokens) uint8 where the vocabulary has at most 256, else int32. Throws a DataError that names a character which
  /// the vocabulary has not, and where.
  Tensor encode(std::string_view text) const;
  /// The text of tokens of any integer type and shape, in the order of rows; throws a DataError for one out of range.
  std::string decode(const Tensor& tokens) const;

 private:
  std::vector<char32_t> characters_;
  std::unordered_map<char32_t, int32_t> numbers_;
};

}  // namespace fulgur
