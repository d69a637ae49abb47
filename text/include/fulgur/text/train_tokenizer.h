#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fulgur/core/options/enum_names.h"
#include "fulgur/text/tokenizer.h"

namespace fulgur {

/// Trains a tokenizer: counts the words of texts, then merges the most frequent pair of neighbours again and again. Of
/// pairs that are equally frequent, the one whose left token has the smaller id comes first, then the one whose right
/// token has. The result depends on the texts only, not on their order or how they are divided into calls (at word
/// borders). Byte-level BPE equals that of `BpeTrainer` of Hugging Face's `tokenizers` with the alphabet of ByteLevel.
class FULGUR_API TokenizerTrainer {
 public:
  enum class Model { bpe, wordpiece };
  friend constexpr auto enum_names(Model) {
    return std::to_array<EnumName<Model>>({{Model::bpe, "bpe"}, {Model::wordpiece, "wordpiece"}});
  }
  struct Options {
    Model model = Model::bpe;
    /// Tokens at most, with the special ones and the alphabet; fewer if the texts have no more pairs.
    int64_t vocab_size = 30000;
    /// A pair that is rarer is not merged.
    int64_t min_frequency = 0;
    /// The first ids. Empty: `<|endoftext|>` for bpe; [PAD], [UNK], [CLS], [SEP], [MASK] for wordpiece, which needs
    /// [UNK], and whose post-processor adds [CLS] and [SEP] if they are there.
    std::vector<std::string> special_tokens = {};
    /// wordpiece: BERT's normalisation with lower case and without accents.
    bool lower_case = true;
  };
  /// Throws a ConfigError for options out of range.
  explicit TokenizerTrainer(Options options);
  ~TokenizerTrainer();
  TokenizerTrainer(const TokenizerTrainer&) = delete;
  TokenizerTrainer& operator=(const TokenizerTrainer&) = delete;

  /// Counts the words of a text. Memory grows with the number of different words. Throws a DataError with the position
  /// of the first byte that is not UTF-8.
  void add(std::string_view text);
  /// Throws a DataError if no words were added, and a ConfigError if vocab_size does not hold the alphabet.
  std::shared_ptr<const Tokenizer> train() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fulgur
