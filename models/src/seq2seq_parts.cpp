#include "fulgur/models/seq2seq_parts.h"

#include <ATen/ops/dropout.h>

namespace fulgur {
namespace {

template <class Options>
Options recurrent(const Seq2SeqPartOptions& options) {
  // Only between layers; with a single layer LibTorch would warn.
  return Options(options.embedding, options.hidden)
      .num_layers(options.layers)
      .batch_first(true)
      .dropout(options.layers > 1 ? options.dropout : 0.0);
}

// Converts (N, layers, hidden) to and from the layers' layout; contiguous, as cuDNN requires.
Tensor turned(const Tensor& state) { return state.transpose(0, 1).contiguous(); }

}  // namespace

Seq2SeqPart::Seq2SeqPart(const Seq2SeqPartOptions& options)
    : dropout_(options.dropout), embedding_(options.vocabulary, options.embedding) {
  register_module("embedding", embedding_);
  if (options.cell == RecurrentCell::gru)
    gru_ = register_module("rnn", torch::nn::GRU(recurrent<torch::nn::GRUOptions>(options)));
  else
    lstm_ = register_module("rnn", torch::nn::LSTM(recurrent<torch::nn::LSTMOptions>(options)));
}

std::tuple<Tensor, Seq2SeqPart::State> Seq2SeqPart::run(const Tensor& tokens, const State& state) {
  Tensor x = embedding_(tokens);
  if (dropout_ > 0) x = at::dropout(x, dropout_, is_training());
  if (gru_) {
    auto [outputs, h] = gru_->forward(x, state.empty() ? Tensor() : turned(state[0]));
    return {std::move(outputs), State{turned(h)}};
  }
  std::optional<std::tuple<Tensor, Tensor>> before;
  if (!state.empty()) before.emplace(turned(state[0]), turned(state[1]));
  auto [outputs, after] = lstm_->forward(x, before);
  return {std::move(outputs), State{turned(std::get<0>(after)), turned(std::get<1>(after))}};
}

Seq2SeqPart::State Seq2SeqEncoder::forward(const Tensor& tokens) { return std::get<1>(run(tokens, {})); }

Seq2SeqDecoder::Seq2SeqDecoder(const Seq2SeqPartOptions& options)
    : Seq2SeqPart(options), output_(options.hidden, options.vocabulary) {
  register_module("output", output_);
}

std::tuple<Tensor, Seq2SeqPart::State> Seq2SeqDecoder::forward(const Tensor& tokens, const State& state) {
  auto [outputs, after] = run(tokens, state);
  return {output_(outputs), std::move(after)};
}

}  // namespace fulgur
