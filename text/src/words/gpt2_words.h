#pragma once

#include <cstddef>
#include <string_view>

namespace fulgur::detail {

/// The end of the word of GPT-2's pattern that begins at `begin`, in well-formed UTF-8:
/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`. The words cover the whole text.
size_t gpt2_word_end(std::string_view text, size_t begin);

}  // namespace fulgur::detail
