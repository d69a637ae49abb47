#pragma once

// Independent of LibTorch. The properties are those of utf8proc, which follows the Unicode Character Database.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fulgur::detail {

/// What GPT-2's pattern tells apart: `\s`, `\p{L}`, `\p{N}` and the rest.
enum class CharacterClass : uint8_t { space, letter, number, other };

CharacterClass class_of(char32_t c);
/// The property White_Space.
bool is_white_space(char32_t c);
/// Punctuation of any kind, or an ASCII character that is neither a letter, a digit, a space nor a control character.
bool is_bert_punctuation(char32_t c);
/// A control, format or private-use character other than tab, line feed and carriage return.
bool is_bert_control(char32_t c);
/// Category Mn, such as an accent that is a separate character.
bool is_nonspacing_mark(char32_t c);
bool is_chinese(char32_t c);
void append_lower_case(std::string& out, char32_t c);

/// The character at `at`, which is moved past it. The text must be well-formed UTF-8.
char32_t next_character(std::string_view text, size_t& at);
void append_character(std::string& out, char32_t c);

/// The canonical decomposition (NFD) of well-formed UTF-8.
std::string decomposed(std::string_view text);
/// The canonical composition (NFC) of well-formed UTF-8; nullopt if it has only characters that compose with none, so
/// that nothing changes.
std::optional<std::string> composed(std::string_view text);

/// The position of the first byte that is not part of well-formed UTF-8; npos if there is none.
size_t first_invalid_byte(std::string_view text);
/// Throws a DataError with the position of the first byte that is not UTF-8, counted from `offset`. `what` names the
/// text, such as `[text.encode] the text`.
void require_utf8(std::string_view text, std::string_view what, uint64_t offset = 0);
/// `text` with U+FFFD for each sequence that is not UTF-8, as Python and Rust replace them.
std::string with_replacements(std::string_view text);

/// The last position in `text` at which a character that is not white space is followed by `before` (a space or a line
/// feed): no word of a tokenizer reaches over it. 0 if there is none. `text` may end inside a character.
/// `punctuation_takes_line_ends`: a line feed counts only after a letter or a number.
size_t last_word_border(std::string_view text, std::string_view before, bool punctuation_takes_line_ends = false);

}  // namespace fulgur::detail
