#include "fulgur/models/seq2seq.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <vector>

#include "fulgur/core/options/checked_options.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "option_bounds.h"

namespace fulgur {
namespace {

constexpr int64_t kBeginning = 0;

Tensor beginning_of(const Tensor& tokens) { return at::full({tokens.size(0), 1}, kBeginning, tokens.options()); }

void check_tokens(const Tensor& tokens, const char* entry) {
  if (tokens.dim() != 2 || tokens.scalar_type() != at::kLong || tokens.size(1) < 1)
    throw DataError(cat("[models.Seq2Seq] '", entry, "' must be int64 of shape [N, T]; got ",
                        c10::toString(tokens.scalar_type()), " of shape ", shape_text(tokens.sizes()), "."));
}

// Searched for only after a failure: a check in each step would wait for the device.
[[noreturn]] void throw_token_out_of_range(std::initializer_list<const Tensor*> all, int64_t vocabulary) {
  for (const Tensor* tokens : all) {
    const Tensor wrong = tokens->masked_select(tokens->lt(0).logical_or(tokens->ge(vocabulary)));
    if (wrong.numel() == 0) continue;
    throw DataError(cat("[models.Seq2Seq] tokens must be in [0, vocabulary = ", vocabulary, "); got ",
                        wrong[0].item<int64_t>(),
                        ". Link vocabulary to the data's: `link: {model.init_args.vocabulary: data.vocabulary}`."));
  }
  throw DataError(cat("[models.Seq2Seq] tokens must be in [0, vocabulary = ", vocabulary, ")."));
}

Tensor on_device_of(const Tensor& tensor, const Tensor& other) {
  return tensor.to(other.device(), /*non_blocking=*/!other.is_cpu());
}

}  // namespace

void Seq2Seq::Options::fields(Fields& f) {
  f(vocabulary, "vocabulary", "Number of different tokens, including the start token (0); link it to the data's.")
      .range(2, detail::kMostWidth);
  f(embedding, "embedding", "Width of a token's embedding.").range(1, detail::kMostWidth);
  f(hidden, "hidden", "Width of the recurrent layers.").range(1, detail::kMostWidth);
  f(layers, "layers", "Number of recurrent layers in the encoder and in the decoder.").range(1, detail::kMostLayers);
  f(cell, "cell", "The recurrent layers: gru or lstm.");
  f(dropout, "dropout", "Dropout probability in training: of embeddings, and between recurrent layers.")
      .at_least(0)
      .less_than(1);
}

Seq2Seq::Seq2Seq(const Options& options) : options_(detail::checked_options(options, "models.Seq2Seq")) {
  const Seq2SeqPartOptions part{options.vocabulary, options.embedding, options.hidden,
                                options.layers,     options.cell,      options.dropout};
  encoder_ = nn::register_placed<Seq2SeqEncoder>(*this, "encoder", part);
  decoder_ = nn::register_placed<Seq2SeqDecoder>(*this, "decoder", part);
}

Tensor Seq2Seq::forward(const Tensor& source, const Tensor& target) {
  check_tokens(source, "source");
  check_tokens(target, "target");
  try {
    const Tensor given = at::cat({beginning_of(target), target.narrow(1, 0, target.size(1) - 1)}, 1);
    return std::get<0>(decoder_(given, encoder_(source)));
  } catch (const c10::IndexError&) {
    throw_token_out_of_range({&source, &target}, options_.vocabulary);
  }
}

Tensor Seq2Seq::decode(const Tensor& source, int64_t length) {
  check_tokens(source, "source");
  const at::NoGradGuard no_grad;
  Seq2SeqPart::State state;
  try {
    state = encoder_(source);
  } catch (const c10::IndexError&) {
    throw_token_out_of_range({&source}, options_.vocabulary);
  }
  std::vector<Tensor> tokens = {beginning_of(source)};
  for (int64_t i = 0; i < length; ++i) {
    auto [logits, after] = decoder_(tokens.back(), state);
    tokens.push_back(logits.argmax(2));
    state = std::move(after);
  }
  tokens.erase(tokens.begin());
  return at::cat(tokens, 1);
}

Tensor Seq2Seq::loss_of(const Tensor& logits, const Tensor& target) const {
  try {
    return at::cross_entropy_loss(logits.flatten(0, 1), on_device_of(target, logits).reshape(-1));
  } catch (const c10::IndexError&) {
    throw_token_out_of_range({&target}, options_.vocabulary);
  }
}

StepOutput Seq2Seq::training_step(const Batch& batch, int64_t) {
  const Tensor& target = batch["target"];
  Tensor loss = loss_of(forward(batch["source"], target), target);
  log("train_loss", loss, {.prog_bar = true});
  return loss;
}

void Seq2Seq::evaluate(const Batch& batch, const std::string& stage) {
  const Tensor& target = batch["target"];
  const Tensor logits = forward(batch["source"], target);
  log(stage + "_loss", loss_of(logits, target), {.prog_bar = true});
  // In double: the mean over batches is then exact to the last digit shown.
  const Tensor right = on_device_of(target, logits);
  log(stage + "_acc", logits.argmax(2).eq(right).to(at::kDouble).mean(), {.prog_bar = true});
  log(stage + "_exact", decode(batch["source"], target.size(1)).eq(right).all(1).to(at::kDouble).mean(),
      {.prog_bar = true});
}

Outputs Seq2Seq::validation_step(const Batch& batch, int64_t, int64_t) {
  evaluate(batch, "val");
  return {};
}

Outputs Seq2Seq::test_step(const Batch& batch, int64_t, int64_t) {
  evaluate(batch, "test");
  return {};
}

Outputs Seq2Seq::predict_step(const Batch& batch, int64_t, int64_t) {
  return {{"tokens", decode(batch["source"], batch["source"].size(1))}};
}

[[maybe_unused]] static const bool registered_seq2seq = Registry<LightningModule>::add<Seq2Seq>(
    "Seq2Seq", "Recurrent encoder and decoder for sequences of tokens, which can be placed on different devices.");

}  // namespace fulgur
