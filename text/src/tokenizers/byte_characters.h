#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fulgur::detail {

/// GPT-2 writes each byte as a printable character: `!` to `~`, U+00A1 to U+00AC and U+00AE to U+00FF stand for
/// themselves, the other 68 bytes are U+0100 and those after it.
const std::array<char32_t, 256>& characters_of_bytes();

std::string byte_characters(std::string_view bytes);
/// The reverse; nullopt if a character stands for no byte. `text` is well-formed UTF-8.
std::optional<std::string> bytes_of_characters(std::string_view text);

}  // namespace fulgur::detail
