#pragma once

#include <bit>

namespace fulgur::detail {

inline constexpr const char* kTokensName = "tokens.bin";
inline constexpr const char* kDocumentsName = "documents.bin";  // uint64: where each document begins, and the end
inline constexpr const char* kInfoName = "tokens.json";
inline constexpr const char* kTokenizerName = "tokenizer.json";
inline constexpr const char* kFormatName = "fulgur.tokens";

static_assert(std::endian::native == std::endian::little, "token files are little-endian and mapped as they are");

}  // namespace fulgur::detail
