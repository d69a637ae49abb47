#include "tokenizers/byte_characters.h"

#include "unicode/characters.h"

namespace fulgur::detail {

const std::array<char32_t, 256>& characters_of_bytes() {
  static const std::array<char32_t, 256> table = [] {
    std::array<char32_t, 256> made{};
    char32_t next = 256;
    for (char32_t byte = 0; byte < 256; ++byte) {
      const bool printable =
          (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
      made[byte] = printable ? byte : next++;
    }
    return made;
  }();
  return table;
}

std::string byte_characters(std::string_view bytes) {
  std::string out;
  for (const char byte : bytes) append_character(out, characters_of_bytes()[static_cast<unsigned char>(byte)]);
  return out;
}

std::optional<std::string> bytes_of_characters(std::string_view text) {
  constexpr size_t kCharacters = 256 + 68;
  static const std::array<int, kCharacters> bytes = [] {
    std::array<int, kCharacters> made{};
    made.fill(-1);
    for (size_t byte = 0; byte < 256; ++byte) made[characters_of_bytes()[byte]] = static_cast<int>(byte);
    return made;
  }();
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_character(text, at);
    if (c >= kCharacters || bytes[c] < 0) return std::nullopt;
    out += static_cast<char>(bytes[c]);
  }
  return out;
}

}  // namespace fulgur::detail
