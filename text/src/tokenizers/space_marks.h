#pragma once

#include <string>
#include <string_view>

#include "tokenizers/json_part.h"
#include "tokenizers/tokenizer_parts.h"

namespace fulgur::detail {

/// `▁`, U+2581.
inline constexpr std::string_view kSpaceMark = "\xe2\x96\x81";

/// Reads normalizer, pre_tokenizer and decoder of a tokenizer.json whose model has `byte_fallback`.
void read_space_marks(const JsonPart& root, SpaceMarks& marks);
/// Writes these parts.
void write_space_marks(const SpaceMarks& marks, TokenizerJson& json);

/// A stretch of text with marks for spaces, and one in front as `marks` says; `is_first` if it begins the text.
std::string with_space_marks(std::string_view text, const SpaceMarks& marks, bool is_first);

/// The byte that a token such as `<0x0A>` stands for, or -1.
int byte_of_token(std::string_view token);
/// `<0x0A>`.
std::string token_of_byte(unsigned char byte);

/// Joins decoded tokens: marks become spaces, and tokens of bytes, bytes. Bytes that are not UTF-8 become U+FFFD, each
/// of a run of tokens of bytes.
class MarkedText {
 public:
  void add(std::string_view token);
  std::string take(const SpaceMarks& marks);

 private:
  void end_bytes();
  std::string text_, bytes_;
};

}  // namespace fulgur::detail
