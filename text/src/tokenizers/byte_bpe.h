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

/// Byte-level BPE: a word starts as its bytes; the pair with the lowest rank is merged, the leftmost one first, until
/// no pair has a rank.
class ByteBpe {
 public:
  /// Throws a DataError, with `where` in front, if the merges do not fit the vocabulary, or if bytes lack a token and
  /// there is no unk_token.
  ByteBpe(const TokenizerParts& parts, const std::string& where);
  /// Appends the ids of a word (bytes, not their characters).
  void encode(std::string_view word, std::vector<int32_t>& out) const;

 private:
  void merge_short(std::vector<int32_t>& ids) const;
  void merge_long(std::vector<int32_t>& ids) const;
  std::array<int32_t, 256> byte_ids_{};  // -1: none
  PairTable merges_;
  std::optional<int32_t> unk_;
  bool fuse_unk_;
  std::unordered_map<std::string, int32_t> whole_words_;  // by bytes; filled for ignore_merges
};

}  // namespace fulgur::detail
