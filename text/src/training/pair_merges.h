#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace fulgur::detail {

struct MergeTraining {
  int64_t vocab_size = 0;
  int64_t min_frequency = 0;
  std::vector<std::string> special_tokens = {};
  std::vector<char32_t> alphabet = {};  ///< tokens even if no word has them
  std::string continuing_prefix = {};   ///< of tokens that do not begin a word
};

struct MergedTokens {
  std::vector<std::string> tokens;  ///< by id
  std::vector<std::pair<std::string, std::string>> merges;
};

/// Words (well-formed UTF-8, each once, in any order) and their counts.
using CountedWords = std::vector<std::pair<std::string, int64_t>>;

/// Learns merges of characters as Hugging Face's BpeTrainer does. The counts of pairs are updated after each merge in
/// the words that contain it, so the time does not grow with the square of the vocabulary.
MergedTokens learn_merges(CountedWords words, const MergeTraining& how);

}  // namespace fulgur::detail
