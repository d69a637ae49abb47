#pragma once

#include <string>
#include <string_view>

#include "tokenizers/tokenizer_parts.h"

namespace fulgur::detail {

/// Reads the text of a tokenizer.json. Throws a DataError that names `name` and the part that is damaged, or that this
/// implementation does not have.
TokenizerParts parts_from_json(std::string_view text, const std::string& name);

/// The tokenizer.json of `parts`: equal parts give equal texts.
std::string json_of(const TokenizerParts& parts);

/// Sorts the vocabulary and the added tokens by id, and checks them: ids in range, each used once, tokens not empty,
/// and the tokens of the template known.
void check_parts(TokenizerParts& parts, const std::string& name);

}  // namespace fulgur::detail
