#pragma once

#include <cstddef>
#include <string_view>

namespace fulgur::detail {

/// The end of the word that begins at `begin`, in well-formed UTF-8, by the pattern of GPT-4 and Llama 3:
/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
/// ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`. Qwen 2 has `\p{N}` in place of `\p{N}{1,3}`: `most_digits` is 3
/// or 1. The words cover the whole text.
size_t gpt4_word_end(std::string_view text, size_t begin, int most_digits);

}  // namespace fulgur::detail
