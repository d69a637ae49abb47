#include "fulgur/models/gpt.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/nn/modules/container/modulelist.h>

#include <cmath>

#include "fulgur/core/options/checked_options.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/nn/checkpoint.h"
#include "option_bounds.h"
#include "parts/checkpoint_interval.h"

namespace fulgur {
namespace {

constexpr int64_t kIgnoredToken = -100;

GptBlockOptions block_options(const GPT::Options& options) {
  return {.n_embd = options.n_embd,
          .n_head = options.n_head,
          .dropout = options.dropout,
          .bias = options.bias,
          .activation = options.activation,
          .n_kv_head = options.n_kv_head,
          .norm = options.norm,
          .norm_eps = options.norm_eps,
          .mlp = options.mlp,
          .mlp_hidden = options.mlp_hidden};
}

void check_parts(const GPT::Options& options) {
  const bool rotary = options.positions == GptPositions::rotary;
  if (!rotary && options.rope_theta.value)
    throw ConfigError("[models.GPT] rope_theta is for positions: rotary; they are learned. Remove one of the two.");
  if (options.mlp == GptMlpKind::swiglu && options.activation != GptActivation::gelu)
    throw ConfigError("[models.GPT] activation is for mlp: gelu; mlp is swiglu. Remove one of the two.");
  if (rotary && options.n_embd % options.n_head == 0 && options.n_embd / options.n_head % 2 != 0)
    throw ConfigError(cat("[models.GPT] rotary positions need heads of an even size; got n_embd ", options.n_embd,
                          " and n_head ", options.n_head, "."));
}

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
  f(positions, "positions", "learned: a vector for each position; rotary: rotations of queries and keys, as in Llama.");
  f(rope_theta, "rope_theta", "Base of the wave lengths of rotary positions; auto: 10000.").greater_than(0);
  f(norm, "norm", "layer: LayerNorm; rms: RMSNorm, which has no bias.");
  f(norm_eps, "norm_eps", "Added to the variance, or the mean square, in norms.").greater_than(0);
  f(mlp, "mlp",
    "Fully connected part of a block; gelu: two layers; swiglu: SiLU of a gate times a layer, and a layer.");
  f(mlp_hidden, "mlp_hidden",
    "Width inside the fully connected part; auto: 4 n_embd, for swiglu 8/3 n_embd, rounded up to a multiple of 64.")
      .range(1, detail::kMostWidth);
  f(n_kv_head, "n_kv_head", "Heads of keys and values, which groups of heads share; must divide n_head; auto: n_head.")
      .range(1, detail::kMostLayers);
  f(tie_weights, "tie_weights", "Whether the output layer shares its weight with the token embedding.");
  f(generate, "generate",
    "With a max_new_tokens above 0, prediction continues the tokens of a batch (temperature, top_k, top_p, seed, "
    "stop_tokens).");
}

GPT::GPT(const Options& options)
    : options_(detail::checked_options(options, "models.GPT")),
      checkpoint_every_(detail::checkpoint_interval(options.activation_checkpointing, "GPT")) {
  check_parts(options);
  const auto transformer = register_module("transformer", std::make_shared<torch::nn::Module>());
  wte_ = transformer->register_module("wte", torch::nn::Embedding(options.vocab_size, options.n_embd));
  if (options.positions == GptPositions::learned)
    wpe_ = transformer->register_module("wpe", torch::nn::Embedding(options.block_size, options.n_embd));
  const auto blocks = transformer->register_module("h", std::make_shared<torch::nn::ModuleListImpl>());
  for (int64_t i = 0; i < options.n_layer; ++i) {
    blocks_.push_back(std::make_shared<GptBlock>(block_options(options)));
    blocks->push_back(blocks_.back());
  }
  ln_f_ = GptNorm(*transformer, "ln_f", block_options(options));
  lm_head_ = register_module("lm_head", nn::Linear(nn::LinearOptions(options.n_embd, options.vocab_size).bias(false)));
  if (options.tie_weights) {
    lm_head_->weight = wte_->weight;
    tie_parameters(*this, "transformer.wte.weight", "lm_head.weight");
  }
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

// `positions`: of each token, (N, T); undefined: 0, 1, ….
Tensor GPT::embed(const Tensor& tokens, const Tensor& positions, GptContext& context) {
  Tensor x;
  try {
    x = wte_(tokens);
  } catch (const c10::IndexError&) {
    throw_token_out_of_range(tokens, options_.vocab_size);
  }
  if (options_.positions == GptPositions::learned)
    x = x + (positions.defined() ? wpe_(positions) : wpe_->weight.narrow(0, 0, tokens.size(1)));
  context.rotation = rotation_of(x, positions, tokens.size(1));
  return options_.dropout > 0 ? at::dropout(x, options_.dropout, is_training()) : x;
}

nn::Rotation GPT::rotation_of(const Tensor& x, const Tensor& positions, int64_t length) const {
  if (options_.positions == GptPositions::learned) return {};
  const Tensor places = positions.defined() ? positions : at::arange(length, x.options().dtype(at::kLong));
  return nn::rotation_at(places, options_.n_embd / options_.n_head, options_.rope_theta.value.value_or(10000.0),
                         x.scalar_type());
}

Tensor GPT::block(size_t index, const Tensor& x, const GptContext& context) {
  const auto compute = [block = blocks_[index], context](const Tensor& input) {
    return block->forward(input, context);
  };
  return detail::is_checkpointed(index, checkpoint_every_) ? nn::checkpoint(compute, x) : compute(x);
}

Tensor GPT::forward(const Tensor& tokens) {
  check_tokens(tokens, options_.block_size);
  GptContext context;
  Tensor x = embed(tokens, {}, context);
  for (size_t i = 0; i < blocks_.size(); ++i) x = block(i, x, context);
  return lm_head_(ln_f_.forward(x));
}

Tensor GPT::blocks_with(Tensor x, const GptContext& context, GptCache& cache) {
  cache.blocks_.resize(blocks_.size(), KeyValueCache(cache.capacity_));
  for (size_t i = 0; i < blocks_.size(); ++i) x = blocks_[i]->forward(x, context, &cache.blocks_[i]);
  return x;
}

Tensor GPT::begin(const Tensor& tokens, const Tensor& lengths, GptCache& cache) {
  const at::NoGradGuard no_grad;
  check_tokens(tokens, options_.block_size);
  GptContext context;
  const Tensor x = embed(tokens, {}, context);
  const Tensor all = blocks_with(x, context, cache);
  // Norm and output layer see the last tokens only.
  const Tensor last = (lengths - 1).view({-1, 1, 1}).expand({all.size(0), 1, all.size(2)});
  return lm_head_(ln_f_.forward(all.gather(1, last).squeeze(1)));
}

Tensor GPT::extend(const Tensor& tokens, const Tensor& positions, int64_t used, GptCache& cache) {
  const at::NoGradGuard no_grad;
  GptContext context;
  const Tensor place = positions.unsqueeze(1);
  const Tensor x = embed(tokens.unsqueeze(1), place, context);
  context.places = positions;
  context.used = used;
  context.mask = at::arange(used, positions.options()).unsqueeze(0).le(place).view({-1, 1, 1, used});
  return lm_head_(ln_f_.forward(blocks_with(x, context, cache).squeeze(1)));
}

LayerChain GPT::stages() {
  LayerChain chain;
  chain.input = [](const Batch& batch) { return LayerChain::Values{batch[0]}; };
  std::vector<std::string> embeddings{"transformer.wte"};
  if (options_.positions == GptPositions::learned) embeddings.emplace_back("transformer.wpe");
  chain.add("embedding", embeddings, [this](const Tensor& tokens) {
    check_tokens(tokens, options_.block_size);
    GptContext context;
    return embed(tokens, {}, context);
  });
  for (size_t i = 0; i < blocks_.size(); ++i)
    chain.add(
        cat("h.", i), {cat("transformer.h.", i)},
        // Ranks may have parts of the tokens of x.
        [this, i](const Tensor& x) { return block(i, x, {.rotation = rotation_of(x, {}, options_.block_size)}); });
  chain.add("head", {"transformer.ln_f", "lm_head"}, [this](const Tensor& x) { return lm_head_(ln_f_.forward(x)); });
  chain.loss = [this](const LayerChain::Values& logits, const Batch& batch) {
    Tensor loss = loss_of(logits[0], batch);
    log("train_loss", loss, {.prog_bar = true});
    return loss;
  };
  return chain;
}

TensorPlan GPT::tensor_plan() const {
  TensorPlan plan = gpt_tensor_plan(block_options(options_));
  plan.push_back({.pattern = "transformer.wte", .split = TensorSplit::vocabulary});
  plan.push_back({.pattern = "lm_head", .split = TensorSplit::vocabulary});
  return plan;
}

Tensor GPT::loss_of(const Batch& batch) { return loss_of(forward(batch[0]), batch); }

Tensor GPT::loss_of(const Tensor& logits, const Batch& batch) const {
  const Tensor& targets = batch[1];
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
  if (options_.generate.max_new_tokens > 0) {
    Prompts prompts{.tokens = batch[0]};
    if (batch.contains("mask")) prompts.lengths = batch["mask"].sum(1);
    if (batch.contains("index")) prompts.indices = batch["index"];
    return {{"generated", fulgur::generate(*this, prompts, options_.generate)}};
  }
  if (options_.generate != GenerateOptions())
    log::warn("models.generates_nothing",
              "options of generate are set, but max_new_tokens is 0: the most probable next token of each place is "
              "predicted, and no text. Set model.init_args.generate.max_new_tokens");
  const auto [probability, prediction] = forward(batch[0]).softmax(2).max(2);
  return {{"prediction", prediction}, {"probability", probability}};
}

[[maybe_unused]] static const bool registered_gpt =
    Registry<LightningModule>::add<GPT>("GPT",
                                        "A decoder-only transformer for text with the shapes of GPT-2 or Llama, with "
                                        "generation and activation checkpointing.");

}  // namespace fulgur
