#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "fulgur/text/tokenizer.h"
#include "tokenizers/added_tokens.h"
#include "tokenizers/byte_bpe.h"
#include "tokenizers/tokenizer_parts.h"
#include "tokenizers/word_cache.h"
#include "tokenizers/word_piece.h"

namespace fulgur::detail {

/// The tokenizer of checked parts.
class ComposedTokenizer final : public Tokenizer {
 public:
  /// `name` stands for it in messages.
  ComposedTokenizer(TokenizerParts parts, const std::string& name);

  std::vector<int32_t> encode(std::string_view text) const override;
  std::vector<int32_t> with_special_tokens(std::vector<int32_t> ids) const override;
  int64_t num_special_tokens() const override;
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens) const override;
  int64_t vocab_size() const override { return static_cast<int64_t>(tokens_.size()); }
  std::optional<int32_t> id_of(std::string_view token) const override;
  std::vector<std::string> special_tokens() const override;
  std::string json() const override { return json_of_parts(); }
  const std::string& fingerprint() const override { return fingerprint_; }
  size_t last_cut(std::string_view text) const override;

 private:
  using Model = std::variant<ByteBpe, WordPiece>;
  static Model model_of(const TokenizerParts& parts, const std::string& name);
  std::vector<AddedTokens::Pattern> patterns(bool normalized_ones) const;
  std::string json_of_parts() const;
  std::string normalized_text(std::string_view text) const;
  // `is_first`: it begins the text.
  void encode_marked(std::string_view piece, bool is_first, WordCache& cache, std::vector<int32_t>& out) const;
  void encode_piece(std::string_view piece, bool is_first, WordCache& cache, std::vector<int32_t>& out) const;
  void encode_words(std::string_view piece, WordCache& cache, std::vector<int32_t>& out) const;

  const TokenizerParts parts_;  // the model and the added tokens refer to it
  Model model_;
  AddedTokens raw_, normalized_;
  std::vector<const std::string*> tokens_;  // by id; nullptr: none
  std::vector<bool> special_;               // by id
  std::unordered_map<std::string_view, int32_t> ids_;
  bool can_cut_ = true;
  std::string fingerprint_;
  mutable WordCaches caches_;
};

}  // namespace fulgur::detail
