#include "fulgur/models/bert_classifier.h"

#include <ATen/ops/dropout.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <c10/util/Exception.h>
#include <torch/nn/modules/container/modulelist.h>

#include <optional>

#include "fulgur/core/options/checked_options.h"
#include "fulgur/core/text/text.h"
#include "fulgur/nn/checkpoint.h"
#include "option_bounds.h"
#include "parts/checkpoint_interval.h"

namespace fulgur {
namespace {

using BertOptions = BertClassifier::Options;

Tensor bert_drop(const Tensor& x, double share, bool training) {
  return share > 0 && training ? at::dropout(x, share, true) : x;
}

std::shared_ptr<nn::LayerNormImpl> bert_norm(const BertOptions& options) {
  return std::make_shared<nn::LayerNormImpl>(nn::LayerNormOptions({options.hidden_dim}).eps(options.layer_norm_eps));
}

void check_texts(const Tensor& values, const Tensor& tokens, at::ScalarType type, const char* name) {
  if (values.scalar_type() != type || values.dim() != 2 || values.sizes() != tokens.sizes())
    throw DataError(cat("[models.BertClassifier] ", name, " must be ", c10::toString(type),
                        tokens.dim() == 2 ? cat(" of shape ", shape_text(tokens.sizes())) : " of shape [N, T]",
                        "; got ", c10::toString(values.scalar_type()), " of shape ", shape_text(values.sizes()), "."));
}

// Searched for only after a failure: a check in each step would wait for the device.
[[noreturn]] void throw_out_of_vocabulary(const Tensor& values, int64_t size, const char* name, const char* option) {
  const Tensor wrong = values.masked_select(values.lt(0).logical_or(values.ge(size)));
  throw DataError(cat("[models.BertClassifier] ", name, " must be in [0, ", option, " = ", size, ")",
                      wrong.numel() > 0 ? cat("; got ", wrong[0].item<int64_t>()) : std::string(), ". Set ", option,
                      " to match the data."));
}

Tensor bert_embedded(torch::nn::Embedding& embedding, const Tensor& values, int64_t size, const char* name,
                     const char* option) {
  try {
    return embedding(values);
  } catch (const c10::IndexError&) {
    throw_out_of_vocabulary(values, size, name, option);
  }
}

class BertAttention : public torch::nn::Module {
 public:
  explicit BertAttention(const BertOptions& options) : num_heads_(options.num_heads), dropout_(options.dropout) {
    in_proj_ = register_module("in_proj", nn::Linear(options.hidden_dim, 3 * options.hidden_dim));
    out_proj_ = register_module("out_proj", nn::Linear(options.hidden_dim, options.hidden_dim));
  }

  // `mask`: (N, 1, 1, T) bool, or undefined.
  Tensor forward(const Tensor& input, const Tensor& mask) {
    const int64_t samples = input.size(0), length = input.size(1), width = input.size(2);
    const auto parts = in_proj_(input).split(width, /*dim=*/2);
    const auto heads = [&](const Tensor& x) {
      return x.view({samples, length, num_heads_, width / num_heads_}).transpose(1, 2);
    };
    const Tensor mixed = at::scaled_dot_product_attention(heads(parts[0]), heads(parts[1]), heads(parts[2]),
                                                          mask.defined() ? std::optional(mask) : std::nullopt,
                                                          is_training() ? dropout_ : 0.0);
    return out_proj_(mixed.transpose(1, 2).reshape({samples, length, width}));
  }

 private:
  int64_t num_heads_;
  double dropout_;
  nn::Linear in_proj_{nullptr}, out_proj_{nullptr};
};

}  // namespace

/// norm(x + attention(x)), then norm(x + mlp(x)).
class BertClassifier::Layer : public torch::nn::Module {
 public:
  explicit Layer(const Options& options) : dropout_(options.dropout) {
    attention_ = register_module("attention", std::make_shared<BertAttention>(options));
    norm_1_ = register_module("norm_1", bert_norm(options));
    widen_ = register_module("widen", nn::Linear(options.hidden_dim, options.mlp_dim));
    narrow_ = register_module("narrow", nn::Linear(options.mlp_dim, options.hidden_dim));
    norm_2_ = register_module("norm_2", bert_norm(options));
  }

  Tensor forward(const Tensor& input, const Tensor& mask) {
    const bool training = is_training();
    const Tensor x = norm_1_->forward(input + bert_drop(attention_->forward(input, mask), dropout_, training));
    return norm_2_->forward(x + bert_drop(narrow_(at::gelu(widen_(x))), dropout_, training));
  }

 private:
  double dropout_;
  std::shared_ptr<BertAttention> attention_;
  std::shared_ptr<nn::LayerNormImpl> norm_1_, norm_2_;
  nn::Linear widen_{nullptr}, narrow_{nullptr};
};

void BertClassifier::Options::fields(Fields& f) {
  f(vocab_size, "vocab_size", "Number of different tokens; link it to data.vocab_size.").range(1, detail::kMostWidth);
  f(max_length, "max_length", "Maximum number of tokens of a text; link it to data.max_length.")
      .range(1, detail::kMostWidth);
  f(type_vocab_size, "type_vocab_size", "Number of token types, which tell two texts of a pair apart.")
      .range(1, detail::kMostWidth);
  f(num_layers, "num_layers", "Number of encoder layers.").range(1, detail::kMostLayers);
  f(num_heads, "num_heads", "Number of attention heads; must divide hidden_dim.").range(1, detail::kMostLayers);
  f(hidden_dim, "hidden_dim", "Width of the encoder.").range(1, detail::kMostWidth);
  f(mlp_dim, "mlp_dim", "Width inside the fully connected part of a layer.").range(1, detail::kMostWidth);
  f(num_classes, "num_classes", "Number of classes; link it to data.num_classes.").range(2, detail::kMostWidth);
  f(dropout, "dropout",
    "Dropout probability in training: of embeddings, attention weights, both parts of a layer, and before the head.")
      .at_least(0)
      .less_than(1);
  f(layer_norm_eps, "layer_norm_eps", "Added to the variance in norms.").greater_than(0);
  f(label_smoothing, "label_smoothing", "Part of each training label that is spread evenly over all classes.")
      .at_least(0)
      .less_than(1);
  ClassWeights::field(f, class_weights);
  f(activation_checkpointing, "activation_checkpointing", detail::kCheckpointingDoc);
  f(metrics, "metrics",
    "Further metrics that validation and test log, such as FBeta, which becomes val_f_beta and test_f_beta.");
}

BertClassifier::BertClassifier(const Options& options)
    : options_(detail::checked_options(options, "models.BertClassifier")),
      checkpoint_every_(detail::checkpoint_interval(options.activation_checkpointing, "BertClassifier")) {
  if (options.hidden_dim % options.num_heads != 0)
    throw ConfigError(cat("[models.BertClassifier] num_heads must divide hidden_dim; got hidden_dim ",
                          options.hidden_dim, " and num_heads ", options.num_heads, "."));
  const int64_t width = options.hidden_dim;
  const auto embeddings = register_module("embeddings", std::make_shared<torch::nn::Module>());
  token_ = embeddings->register_module("token", torch::nn::Embedding(options.vocab_size, width));
  position_ = embeddings->register_module("position", torch::nn::Embedding(options.max_length, width));
  type_ = embeddings->register_module("type", torch::nn::Embedding(options.type_vocab_size, width));
  norm_ = embeddings->register_module("norm", bert_norm(options));
  const auto layers = register_module("layers", std::make_shared<torch::nn::ModuleListImpl>());
  for (int64_t i = 0; i < options.num_layers; ++i) {
    layers_.push_back(std::make_shared<Layer>(options));
    layers->push_back(layers_.back());
  }
  pooler_ = register_module("pooler", nn::Linear(width, width));
  classifier_ = register_module("classifier", nn::Linear(width, options.num_classes));
  const at::NoGradGuard no_grad;
  for (auto& [name, value] : unique_parameters(*this)) {
    if (value.dim() >= 2)
      value.normal_(0, 0.02);
    else if (name.ends_with("bias"))
      value.zero_();
  }
  metrics_.use(options.metrics, options.num_classes, {.component = "BertClassifier", .logs = {"loss", "acc"}});
  class_weights_ = ClassWeights(options.class_weights, options.num_classes, "BertClassifier");
}

BertClassifier::~BertClassifier() = default;

Tensor BertClassifier::embed(const Tensor& tokens, const Tensor& token_types) {
  const Tensor of_tokens = bert_embedded(token_, tokens, options_.vocab_size, "tokens", "vocab_size");
  const Tensor of_types = token_types.defined() ? bert_embedded(type_, token_types, options_.type_vocab_size,
                                                                "token_types", "type_vocab_size")
                                                : type_->weight.narrow(0, 0, 1);
  const Tensor x = of_tokens + of_types + position_->weight.narrow(0, 0, tokens.size(1));
  return bert_drop(norm_->forward(x), options_.dropout, is_training());
}

Tensor BertClassifier::forward(const Tensor& tokens, const Tensor& mask, const Tensor& token_types) {
  check_texts(tokens, tokens, at::kLong, "tokens");
  if (tokens.size(1) < 1 || tokens.size(1) > options_.max_length)
    throw DataError(cat("[models.BertClassifier] a text has between 1 and max_length = ", options_.max_length,
                        " tokens; got ", tokens.size(1), ". Use the same max_length for model and data."));
  if (mask.defined()) check_texts(mask, tokens, at::kBool, "mask");
  if (token_types.defined()) check_texts(token_types, tokens, at::kLong, "token_types");
  const Tensor of_keys = mask.defined() ? mask.unsqueeze(1).unsqueeze(1) : Tensor();
  Tensor x = embed(tokens, token_types);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const auto layer = [layer = layers_[i], of_keys](const Tensor& input) { return layer->forward(input, of_keys); };
    x = detail::is_checkpointed(i, checkpoint_every_) ? nn::checkpoint(layer, x) : layer(x);
  }
  const Tensor pooled = pooler_(x.select(1, 0)).tanh();
  return classifier_(bert_drop(pooled, options_.dropout, is_training()));
}

Tensor BertClassifier::logits_of(const Batch& batch) {
  const auto entry = [&](const char* name) { return batch.contains(name) ? batch[name] : Tensor(); };
  return forward(batch["tokens"], entry("mask"), entry("token_types"));
}

StepOutput BertClassifier::training_step(const Batch& batch, int64_t) {
  const Tensor logits = logits_of(batch);
  Tensor loss =
      classification_loss(logits, batch["label"], options_.label_smoothing, class_weights_.on_device_of(logits));
  log("train_loss", loss, {.prog_bar = true});
  return loss;
}

void BertClassifier::evaluate(const Batch& batch, const std::string& stage, int64_t loader_idx) {
  const Tensor logits = logits_of(batch);
  const Tensor& labels = batch["label"];
  log(stage + "_loss", classification_loss(logits, labels), {.prog_bar = true});
  // In double: the mean over batches is then exact to the last digit shown.
  log(stage + "_acc", logits.argmax(1).eq(labels).to(at::kDouble).mean(), {.prog_bar = true});
  metrics_.update(*this, stage, loader_idx, logits, labels);
}

Outputs BertClassifier::validation_step(const Batch& batch, int64_t, int64_t loader_idx) {
  evaluate(batch, "val", loader_idx);
  return {};
}

Outputs BertClassifier::test_step(const Batch& batch, int64_t, int64_t loader_idx) {
  evaluate(batch, "test", loader_idx);
  return {};
}

Outputs BertClassifier::predict_step(const Batch& batch, int64_t, int64_t) {
  const Tensor probabilities = logits_of(batch).softmax(1);
  return {{"probabilities", probabilities}, {"prediction", probabilities.argmax(1)}};
}

[[maybe_unused]] static const bool registered_bert_classifier = Registry<LightningModule>::add<BertClassifier>(
    "BertClassifier", "A transformer encoder with BERT's architecture that classifies texts; BERT-base's sizes.");

}  // namespace fulgur
