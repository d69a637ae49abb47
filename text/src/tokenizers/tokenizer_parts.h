#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "words/bert_words.h"

namespace fulgur::detail {

/// Above any vocabulary in use. A table of all ids must fit into memory, whatever a file says.
inline constexpr int64_t kMostTokenIds = int64_t{1} << 24;

/// A token that is found in a text before the text is split into words.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool lstrip = false;      ///< takes the white space before it
  bool rstrip = false;      ///< takes the white space after it
  bool normalized = false;  ///< is searched in the normalised text
  bool special = false;     ///< decode may leave it out
};

enum class TokenModel { byte_bpe, word_piece };

/// The pattern that divides a text into words: `none` makes one word of it, `gpt4` is that of Llama 3 too.
enum class WordPattern { none, gpt2, gpt4, qwen2 };

/// How a model of SentencePiece (Llama) sees a text: its spaces are marks, `▁`; it is one word, whose characters are
/// merged; and a character without a token becomes its bytes, `<0x0A>`.
struct SpaceMarks {
  /// Which stretches of text between added tokens get a mark in front: none; each; each that has none; the one at the
  /// beginning of the text, if it has none.
  enum class Front { none, each, each_without, first_without };
  Front front = Front::none;
  bool by_normalizer = true;  ///< else by the pre-tokenizer, after the added tokens that are normalised are found
  bool split = false;         ///< words begin at marks
  bool strip = false;         ///< decode removes a space at the beginning
};

/// What a tokenizer.json says, checked.
struct TokenizerParts {
  TokenModel model = TokenModel::byte_bpe;
  std::vector<std::pair<std::string, int32_t>> vocab = {};       // in the order of ids
  std::vector<std::pair<std::string, std::string>> merges = {};  // byte_bpe
  std::optional<std::string> unk_token = {};                     // always, for word_piece
  bool fuse_unk = false;                                         // byte_bpe
  bool ignore_merges = false;                                    // byte_bpe: words of the vocabulary are not split
  bool add_prefix_space = false;                                 // byte_bpe
  WordPattern words = WordPattern::gpt2;                         // byte_bpe
  bool composes = false;                                         // byte_bpe: the text is normalised to NFC
  std::optional<SpaceMarks> marks = {};                          // byte_bpe: of characters, with bytes as fallback
  std::string continuing_prefix = "##";                          // word_piece
  int64_t max_input_chars_per_word = 100;                        // word_piece
  bool cleanup = true;                                           // word_piece: decode puts no space before `.`
  std::optional<BertNormalization> normalization = {};           // word_piece
  std::vector<AddedToken> added = {};                            // in the order of ids
  std::vector<std::pair<std::string, int32_t>> before = {}, after = {};  // special tokens around a text
};

}  // namespace fulgur::detail
