#pragma once

#include <cstdint>
#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/core/options/options.h"
#include "fulgur/core/state/tensor.h"

namespace fulgur {

class GPT;

/// How `generate` chooses tokens.
struct FULGUR_API GenerateOptions {
  int64_t max_new_tokens = 0;
  double temperature = 1.0;
  int64_t top_k = 0;
  double top_p = 1.0;
  int64_t seed = 0;
  std::vector<int64_t> stop_tokens = {};
  bool operator==(const GenerateOptions&) const = default;
  void fields(Fields& f);
};

/// Beginnings of texts.
struct Prompts {
  Tensor tokens;        ///< (N, T) int64; rows are filled up at their ends
  Tensor lengths = {};  ///< (N) int64, tokens of each row, at least 1; undefined: T
  /// (N) int64: numbers that tell equal prompts apart when tokens are drawn; undefined: a hash of the prompt's tokens.
  Tensor indices = {};
};

/// Continues prompts: (N, max_new_tokens) int64 on the model's device. A stop token is the last one of its row, and is
/// followed by -1. The model computes in eval mode without gradients, with a cache of keys and values; its mode is
/// restored.
///
/// A token is drawn with a random number that is a function of the seed, the prompt's index and the token's position,
/// from the most probable `top_k` tokens (0: all) and of those from the fewest whose probabilities sum up to `top_p`;
/// temperature 0 takes the most probable one. So a row does not depend on the other rows, apart from rounding. A text
/// longer than the model's block_size is continued with its last block_size tokens, computed again for each token.
///
/// Waits for the device once, and with stop tokens once per token. Throws a ConfigError for options out of range, and a
/// DataError for prompts of another shape or dtype, or without a token.
FULGUR_API Tensor generate(GPT& model, const Prompts& prompts, const GenerateOptions& options);
/// The same for prompts (N, T) of equal length.
FULGUR_API Tensor generate(GPT& model, const Tensor& tokens, const GenerateOptions& options);

}  // namespace fulgur
