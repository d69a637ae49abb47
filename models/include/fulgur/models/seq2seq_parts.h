#pragma once

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/rnn.h>

#include <cstdint>
#include <tuple>
#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/core/options/enum_names.h"
#include "fulgur/core/state/tensor.h"
#include "fulgur/nn/linear.h"

namespace fulgur {

enum class RecurrentCell { gru, lstm };
constexpr auto enum_names(RecurrentCell) {
  return std::to_array<EnumName<RecurrentCell>>({{RecurrentCell::gru, "gru"}, {RecurrentCell::lstm, "lstm"}});
}

struct Seq2SeqPartOptions {
  int64_t vocabulary;
  int64_t embedding;
  int64_t hidden;
  int64_t layers;
  RecurrentCell cell;
  double dropout;
};

/// Base of the parts of a Seq2Seq: a token `embedding` and recurrent layers `rnn`. Samples are in dimension 0 of every
/// input and output tensor, including a state: one tensor (N, layers, hidden) for a GRU, two for an LSTM.
class FULGUR_API Seq2SeqPart : public torch::nn::Module {
 public:
  using State = std::vector<Tensor>;
  /// Throws a ConfigError for a cell other than gru or lstm.
  explicit Seq2SeqPart(const Seq2SeqPartOptions& options);

 protected:
  /// Returns the outputs (N, T, hidden) of the last layer for tokens (N, T), and the final state. An empty state means
  /// zeros.
  std::tuple<Tensor, State> run(const Tensor& tokens, const State& state);

 private:
  double dropout_;
  torch::nn::Embedding embedding_;
  torch::nn::GRU gru_{nullptr};
  torch::nn::LSTM lstm_{nullptr};
};

/// The encoder, with parameters `embedding.weight`, `rnn.weight_ih_l0`, ….
class FULGUR_API Seq2SeqEncoder final : public Seq2SeqPart {
 public:
  using Seq2SeqPart::Seq2SeqPart;
  /// Maps tokens (N, T) int64 to the final state.
  State forward(const Tensor& tokens);
};

/// The decoder, with the encoder's parameters, and `output.weight`, `output.bias`.
class FULGUR_API Seq2SeqDecoder final : public Seq2SeqPart {
 public:
  explicit Seq2SeqDecoder(const Seq2SeqPartOptions& options);
  /// Maps tokens (N, T) int64 and the state before them to logits (N, T, vocabulary) of the next tokens, and the final
  /// state.
  std::tuple<Tensor, State> forward(const Tensor& tokens, const State& state);

 private:
  nn::Linear output_;
};

}  // namespace fulgur
