#include "fulgur/models/gpt.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/nn/modules/container/modulelist.h>

#include <cmath>

#include "fulgur/core/options/checked_options.h"
#include "fulgur/core/text/text.h"
#include "fulgur/nn/checkpoint.h"
#include "option_bounds.h"
#include "parts/checkpoint_interval.h"

namespace fulgur {
namespace {

constexpr int64_t kIgnoredToken = -100;

void check_tokens(const Tensor& tokens, int64_t block_size) {
  if (tokens.dim() != 2 || tokens.scalar_type() != at::kLong || tokens.size(1) < 1)
    throw DataError(cat("[models.GPT] tokens must be int64 of shape [N, T]; got ", c10::toString(tokens.scalar_type()),
                        " of shape ", shape_text(tokens.sizes()), "."));
  if (tokens.size(1) > block_size)
    throw DataError(cat("[models.GPT] a sequence has at most block_size = ", block_size, " tokens; got ",
                        tokens.size(1), ". Use the same block_size for model and data."));
}

// Searched for only after a failure: a check in each step would wait for the device.
[[noreturn]] void throw_token_out_of_range(const Tensor& tokens, int64_t vocab_size) {
  const Tensor wrong = tokens.lt(0).logical_and(tokens.ne(kIgnoredToken)).logical_or(tokens.ge(vocab_size));
  const Tensor values = tokens.masked_select(wrong);
  throw DataError(cat("[models.GPT] tokens must be in [0, vocab_size = ", vocab_size, "); got ",
                      values.numel() > 0 ? values[0].item<int64_t>() : kIgnoredToken,
                      ". Link vocab_size to the data's: `link: {model.init_args.vocab_size: data.vocab_size}`."));
}

}  // namespace

void GPT::Options::fields(Fields& f) {
  f(vocab_size, "vocab_size", "Number of different tokens; link it to the data's.").range(1, detail::kMostWidth);
  f(block_size, "block_size", "Maximum number of tokens in a sequence.").range(1, detail::kMostWidth);
  f(n_layer, "n_layer", "Number of blocks.").range(1, detail::kMostLayers);
  f(n_head, "n_head", "Number of attention heads; must divide n_embd.").range(1, detail::kMostLayers);
  f(n_embd, "n_embd", "Width of the blocks.").range(1, detail::kMostWidth);
  f(dropout, "dropout",
    "Dropout probability in training: of the embedding, the attention and both branches of a block.")
      .at_least(0)
      .less_than(1);
  f(bias, "bias", "Whether linear layers and norms have biases.");
  f(activation, "activation",
    "Function inside the fully connected part of a block: gelu, or gelu_tanh, its approximation in GPT-2's weights.");
  f(activation_checkpointing, "activation_checkpointing", detail::kCheckpointingDoc);
}

GPT::GPT(const Options& options)
    : options_(detail::checked_options(options, "models.GPT")),
      checkpoint_every_(detail::checkpoint_interval(options.activation_checkpointing, "GPT")) {
  const auto transformer = register_module("transformer", std::make_shared<torch::nn::Module>());
  wte_ = transformer->register_module("wte", torch::nn::Embedding(options.vocab_size, options.n_embd));
  wpe_ = transformer->register_module("wpe", torch::nn::Embedding(options.block_size, options.n_embd));
  const auto blocks = transformer->register_module("h", std::make_shared<torch::nn::ModuleListImpl>());
  for (int64_t i = 0; i < options.n_layer; ++i) {
    blocks_.push_back(std::make_shared<GptBlock>(GptBlockOptions{.n_embd = options.n_embd,
                                                                 .n_head = options.n_head,
                                                                 .dropout = options.dropout,
                                                                 .bias = options.bias,
                                                                 .activation = options.activation}));
    blocks->push_back(blocks_.back());
  }
  ln_f_ = transformer->register_module(
      "ln_f", std::make_shared<nn::LayerNormImpl>(nn::LayerNormOptions({options.n_embd}), options.bias));
  lm_head_ = register_module("lm_head", nn::Linear(nn::LinearOptions(options.n_embd, options.vocab_size).bias(false)));
  lm_head_->weight = wte_->weight;
  tie_parameters(*this, "transformer.wte.weight", "lm_head.weight");
  initialize();
}

void GPT::initialize() {
  const at::NoGradGuard no_grad;
  const double of_branches = 0.02 / std::sqrt(2.0 * static_cast<double>(options_.n_layer));
  for (auto& [name, value] : unique_parameters(*this)) {
    if (name.ends_with("c_proj.weight"))
      value.normal_(0, of_branches);
    else if (value.dim() >= 2)
      value.normal_(0, 0.02);
    else if (name.ends_with("bias"))
      value.zero_();
  }
}

Tensor GPT::forward(const Tensor& tokens) {
  check_tokens(tokens, options_.block_size);
  Tensor x;
  try {
    x = wte_(tokens) + wpe_->weight.narrow(0, 0, tokens.size(1));
  } catch (const c10::IndexError&) {
    throw_token_out_of_range(tokens, options_.vocab_size);
  }
  if (options_.dropout > 0) x = at::dropout(x, options_.dropout, is_training());
  for (size_t i = 0; i < blocks_.size(); ++i) {
    x = detail::is_checkpointed(i, checkpoint_every_) ? nn::checkpoint(blocks_[i], x) : blocks_[i]->forward(x);
  }
  return lm_head_(ln_f_->forward(x));
}

Tensor GPT::loss_of(const Batch& batch) {
  const Tensor& targets = batch[1];
  const Tensor logits = forward(batch[0]);
  if (targets.sizes() != batch[0].sizes() || targets.scalar_type() != at::kLong)
    throw DataError(cat("[models.GPT] the next tokens must be int64 of the tokens' shape ",
                        shape_text(batch[0].sizes()), "; got ", c10::toString(targets.scalar_type()), " of shape ",
                        shape_text(targets.sizes()), ". The second entry of a batch holds them."));
  try {
    return at::cross_entropy_loss(logits.flatten(0, 1), targets.reshape(-1));
  } catch (const c10::IndexError&) {
    throw_token_out_of_range(targets, options_.vocab_size);
  }
}

StepOutput GPT::training_step(const Batch& batch, int64_t) {
  Tensor loss = loss_of(batch);
  log("train_loss", loss, {.prog_bar = true});
  return loss;
}

void GPT::evaluate(const Batch& batch, const char* loss_name) {
  const Tensor loss = loss_of(batch);
  log(loss_name, loss, {.prog_bar = true});
  const Tensor count = batch[1].ne(kIgnoredToken).sum().to(at::kDouble);
  // In a batch without any token, the mean is NaN and must not count.
  const Tensor sum = at::where(count.gt(0), loss.detach().to(at::kDouble) * count, at::zeros({}, count.options()));
  if (evaluated_.defined()) evaluated_.add_(at::stack({sum, count}));
}

void GPT::begin_perplexity() { evaluated_ = at::zeros({2}, at::TensorOptions(device()).dtype(at::kDouble)); }

void GPT::log_perplexity(const char* name) {
  const Tensor all = run().collectives().all_reduce(evaluated_, ReduceOp::sum);
  log(name, all[0].div(all[1]).exp());
  evaluated_ = Tensor();
}

Outputs GPT::validation_step(const Batch& batch, int64_t, int64_t) {
  evaluate(batch, "val_loss");
  return {};
}

Outputs GPT::test_step(const Batch& batch, int64_t, int64_t) {
  evaluate(batch, "test_loss");
  return {};
}

void GPT::on_validation_epoch_start() { begin_perplexity(); }
void GPT::on_validation_epoch_end() { log_perplexity("val_perplexity"); }
void GPT::on_test_epoch_start() { begin_perplexity(); }
void GPT::on_test_epoch_end() { log_perplexity("test_perplexity"); }

Outputs GPT::predict_step(const Batch& batch, int64_t, int64_t) {
  const auto [probability, prediction] = forward(batch[0]).softmax(2).max(2);
  return {{"prediction", prediction}, {"probability", probability}};
}

[[maybe_unused]] static const bool registered_gpt = Registry<LightningModule>::add<GPT>(
    "GPT", "A decoder-only transformer with GPT-2's architecture for text, with activation checkpointing.");

}  // namespace fulgur
