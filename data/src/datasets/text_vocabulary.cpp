#include "fulgur/data/text_vocabulary.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace {

// Input must be well-formed UTF-8.
char32_t next_character(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  const size_t length = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  char32_t character = length == 1 ? first : static_cast<char32_t>(first & (0x7f >> length));
  for (size_t i = 1; i < length; ++i) character = (character << 6) | (byte(at + i) & 0x3f);
  at += length;
  return character;
}

void append_character(std::string& text, char32_t c) {
  if (c < 0x80) {
    text += static_cast<char>(c);
    return;
  }
  const int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
  text += static_cast<char>((0xff00 >> (more + 1) & 0xff) | (c >> (6 * more)));
  for (int i = more - 1; i >= 0; --i) text += static_cast<char>(0x80 | (c >> (6 * i) & 0x3f));
}

void require_utf8(std::string_view text) {
  if (!is_utf8(text))
    throw DataError(
        "[data.TextVocabulary] a text of characters must be UTF-8; it is not. Set tokens to byte, or convert the "
        "text.");
}

}  // namespace

TextVocabulary TextVocabulary::bytes() { return {}; }

TextVocabulary TextVocabulary::characters_of(std::string_view text) {
  require_utf8(text);
  if (text.empty()) throw DataError("[data.TextVocabulary] the text must have a character; it is empty.");
  std::vector<bool> seen(0x110000);
  for (size_t at = 0; at < text.size();) seen[next_character(text, at)] = true;
  TextVocabulary vocabulary;
  for (char32_t c = 0; c < seen.size(); ++c) {
    if (!seen[c]) continue;
    vocabulary.numbers_.emplace(c, static_cast<int32_t>(vocabulary.characters_.size()));
    vocabulary.characters_.push_back(c);
  }
  return vocabulary;
}

int64_t TextVocabulary::size() const { return is_bytes() ? 256 : static_cast<int64_t>(characters_.size()); }

std::string TextVocabulary::characters() const {
  std::string text;
  for (const char32_t c : characters_) append_character(text, c);
  return text;
}

Tensor TextVocabulary::encode(std::string_view text) const {
  if (is_bytes()) {
    Tensor tokens = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
    if (!text.empty()) std::memcpy(tokens.mutable_data_ptr(), text.data(), text.size());
    return tokens;
  }
  require_utf8(text);
  const auto count = std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
  Tensor tokens = at::empty({count}, size() <= 256 ? at::kByte : at::kInt);
  const auto fill = [&](auto* to) {
    for (size_t at = 0; at < text.size();) {
      const size_t begin = at;
      const auto found = numbers_.find(next_character(text, at));
      if (found == numbers_.end())
        throw DataError(cat("[data.TextVocabulary.encode] each character must be in the vocabulary, which has ", size(),
                            "; '", escape_controls(text.substr(begin, at - begin)), "' at byte ", begin, " is not."));
      *to++ = static_cast<std::remove_reference_t<decltype(*to)>>(found->second);
    }
  };
  if (tokens.scalar_type() == at::kByte)
    fill(tokens.mutable_data_ptr<uint8_t>());
  else
    fill(tokens.mutable_data_ptr<int32_t>());
  return tokens;
}

std::string TextVocabulary::decode(const Tensor& tokens) const {
  const Tensor numbers = tokens.to(at::kCPU, at::kLong).contiguous();
  const auto* number = numbers.const_data_ptr<int64_t>();
  std::string text;
  for (int64_t i = 0; i < numbers.numel(); ++i) {
    if (number[i] < 0 || number[i] >= size())
      throw DataError(cat("[data.TextVocabulary.decode] tokens must be in [0, ", size(), "); got ", number[i], "."));
    if (is_bytes())
      text += static_cast<char>(number[i]);
    else
      append_character(text, characters_[static_cast<size_t>(number[i])]);
  }
  return text;
}

}  // namespace fulgur
