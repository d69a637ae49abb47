#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fulgur/core/export.h"

namespace fulgur {

/// Converts text to ids and back: byte-level BPE (GPT-2) or WordPiece (BERT). The ids are those of Hugging Face's
/// `tokenizers`. Every function is thread-safe.
class FULGUR_API Tokenizer {
 public:
  virtual ~Tokenizer();

  /// The ids of a text, without the tokens of `with_special_tokens`. Added tokens that occur in the text (such as
  /// `<|endoftext|>`) become their ids. Throws a DataError with the position of the first byte that is not UTF-8.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  /// Puts the tokens around the ids that the post-processor of the tokenizer adds, such as [CLS] and [SEP]. Unchanged
  /// for a tokenizer that adds none.
  virtual std::vector<int32_t> with_special_tokens(std::vector<int32_t> ids) const = 0;
  /// How many tokens `with_special_tokens` adds.
  virtual int64_t num_special_tokens() const = 0;
  /// The text of ids. Bytes that are not UTF-8 become U+FFFD; use it on whole texts, as a character may have several
  /// tokens. Throws a DataError for an id without a token.
  virtual std::string decode(std::span<const int32_t> ids, bool skip_special_tokens = true) const = 0;

  /// The largest id plus one: the rows that an embedding needs.
  virtual int64_t vocab_size() const = 0;
  /// The id of a token as it is spelled in the vocabulary; nullopt if there is none.
  virtual std::optional<int32_t> id_of(std::string_view token) const = 0;
  /// The special tokens, in the order of their ids.
  virtual std::vector<std::string> special_tokens() const = 0;

  /// The tokenizer as a `tokenizer.json`, which Hugging Face's `tokenizers` and `read_tokenizer` read.
  virtual std::string json() const = 0;
  /// 16 hexadecimal digits, a hash of `json()`: equal for tokenizers that give equal ids.
  virtual const std::string& fingerprint() const = 0;

  /// A position at which `text` can be cut: the ids of both parts together are those of the whole, whatever follows
  /// `text`. The last one that is found, or 0. Always 0 if the tokenizer has added tokens that contain or take white
  /// space after them.
  virtual size_t last_cut(std::string_view text) const = 0;
};

/// Reads a tokenizer: a `tokenizer.json`, a folder with one, GPT-2's `vocab.json` beside `merges.txt`, or BERT's
/// `vocab.txt` (lower case, unless a `tokenizer_config.json` beside it says `do_lower_case: false`). Throws a DataError
/// for a file that cannot be read or is damaged, and for a part of a `tokenizer.json` that this implementation does not
/// have, by its name.
FULGUR_API std::shared_ptr<const Tokenizer> read_tokenizer(const std::filesystem::path& path);

/// The tokenizer of the text of a `tokenizer.json`; `name` stands for it in messages.
FULGUR_API std::shared_ptr<const Tokenizer> tokenizer_from_json(std::string_view json, std::string_view name);

}  // namespace fulgur
