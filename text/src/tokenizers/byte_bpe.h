#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizers/pair_table.h"
#include "tokenizers/tokenizer_parts.h"

namespace fulgur::detail {

/// BPE: a word starts as its bytes (byte-level BPE), or as its characters and the bytes of those that have no token
/// (SentencePiece); the pair with the lowest rank is merged, the leftmost one first, until
/// no pair has a rank.
class ByteBpe {
 public:
  /// Throws a DataError, with `where` in front, if the merges do not fit the vocabulary, or if bytes lack a token and
  /// there is no unk_token.
  ByteBpe(const TokenizerParts& parts, const std::string& where);
  /// Appends the ids of a word (bytes, not their characters).
  void encode(std::string_view word, std::vector<int32_t>& out) const;

 private:
  void read_bytes(const TokenizerParts& parts, const std::string& where,
                  const std::unordered_map<std::string_view, int32_t>& ids);
  std::vector<int32_t> ids_of_bytes(std::string_view word) const;
  std::vector<int32_t> ids_of_characters(std::string_view word) const;
  void merge_short(std::vector<int32_t>& ids) const;
  void merge_long(std::vector<int32_t>& ids) const;
  std::array<int32_t, 256> byte_ids_{};  // -1: none
  bool by_characters_;
  std::unordered_map<std::string_view, int32_t> characters_;  // the tokens of one character, if by_characters_
  PairTable merges_;
  std::optional<int32_t> unk_;
  bool fuse_unk_;
  std::unordered_map<std::string, int32_t> whole_words_;  // by bytes; filled for ignore_merges
};

}  // namespace fulgur::detail
