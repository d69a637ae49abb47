#include "fulgur/models/ft_transformer.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/stack.h>

#include <cmath>

#include "fulgur/core/options/checked_options.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "option_bounds.h"
#include "tabular/table_inputs.h"

namespace fulgur {
namespace {

/// Uniform in ±1/√width, as the authors' tokens.
Tensor token_weights(int64_t rows, int64_t width) {
  const double bound = 1 / std::sqrt(static_cast<double>(width));
  return at::empty({rows, width}).uniform_(-bound, bound);
}

/// A projection of the attention: Xavier's weights over √2, since query, key and value are separate; a bias of zeros.
nn::Linear projection(int64_t width) {
  nn::Linear layer(width, width);
  const at::NoGradGuard no_grad;
  const double bound = std::sqrt(1.5 / static_cast<double>(width));
  layer->weight.uniform_(-bound, bound);
  layer->bias.zero_();
  return layer;
}

}  // namespace

FtTransformerBlock::FtTransformerBlock(const Sizes& sizes, bool norm_before_attention) : sizes_(sizes) {
  const auto norm = [&] { return std::make_shared<nn::LayerNormImpl>(std::vector<int64_t>{sizes.width}); };
  if (norm_before_attention) attention_norm_ = register_module("attention_norm", norm());
  query_ = register_module("query", projection(sizes.width));
  key_ = register_module("key", projection(sizes.width));
  value_ = register_module("value", projection(sizes.width));
  out_ = register_module("out", nn::Linear(sizes.width, sizes.width));
  {
    const at::NoGradGuard no_grad;
    out_->bias.zero_();
  }
  ffn_norm_ = register_module("ffn_norm", norm());
  linear1_ = register_module("linear1", nn::Linear(sizes.width, 2 * sizes.ffn_width));
  linear2_ = register_module("linear2", nn::Linear(sizes.ffn_width, sizes.width));
}

Tensor FtTransformerBlock::residual(const Tensor& x) const {
  return sizes_.residual_dropout > 0 && is_training() ? at::dropout(x, sizes_.residual_dropout, true) : x;
}

Tensor FtTransformerBlock::attention(const Tensor& queries, const Tensor& tokens) {
  const auto heads = [&](const Tensor& x) {
    return x.view({x.size(0), x.size(1), sizes_.heads, sizes_.width / sizes_.heads}).transpose(1, 2);
  };
  const double dropout = is_training() ? sizes_.attention_dropout : 0.0;
  const Tensor mixed = at::scaled_dot_product_attention(heads(query_(queries)), heads(key_(tokens)),
                                                        heads(value_(tokens)), {}, dropout, /*is_causal=*/false);
  return out_(mixed.transpose(1, 2).reshape({queries.size(0), queries.size(1), sizes_.width}));
}

Tensor FtTransformerBlock::forward(const Tensor& input, bool first_only) {
  const Tensor normed = attention_norm_ ? attention_norm_->forward(input) : input;
  const auto wanted = [&](const Tensor& x) { return first_only ? x.narrow(1, 0, 1) : x; };
  const Tensor x = wanted(input) + residual(attention(wanted(normed), normed));
  const auto halves = linear1_(ffn_norm_->forward(x)).chunk(2, /*dim=*/-1);
  Tensor hidden = halves[0] * halves[1].relu();
  if (sizes_.ffn_dropout > 0 && is_training()) hidden = at::dropout(hidden, sizes_.ffn_dropout, true);
  return x + residual(linear2_(hidden));
}

void FtTransformer::Options::fields(Fields& f) {
  detail::table_input_fields(f, num_numbers, cardinalities);
  target.fields(f);
  f(width, "width", "Values of a token; a multiple of heads.").range(1, detail::kMostWidth);
  f(blocks, "blocks", "Transformer blocks.").range(1, detail::kMostLayers);
  f(heads, "heads", "Heads of each attention.").range(1, detail::kMostWidth);
  f(ffn_width, "ffn_width", "Width inside the second half of a block; auto: 4/3 of width.")
      .range(1, detail::kMostWidth);
  f(attention_dropout, "attention_dropout", "Dropout probability of the attention's weights in training.")
      .at_least(0)
      .less_than(1);
  f(ffn_dropout, "ffn_dropout", "Dropout probability inside the second half of a block in training.")
      .at_least(0)
      .less_than(1);
  f(residual_dropout, "residual_dropout", "Dropout probability of what a block adds in training.")
      .at_least(0)
      .less_than(1);
}

FtTransformer::FtTransformer(const Options& options)
    : TabularModel(options.target, "FtTransformer"),
      options_(detail::checked_options(options, "models.FtTransformer")) {
  detail::check_table_columns(options.num_numbers, options.cardinalities, "FtTransformer");
  if (options.width % options.heads != 0)
    throw ConfigError(cat("[models.FtTransformer] width must be a multiple of heads; got width ", options.width,
                          " and heads ", options.heads, "."));
  const int64_t width = options.width;
  first_token_ = register_parameter("first_token", token_weights(1, width).squeeze(0));
  if (options.num_numbers > 0) {
    number_weight_ = register_parameter("number_weight", token_weights(options.num_numbers, width));
    number_bias_ = register_parameter("number_bias", token_weights(options.num_numbers, width));
  }
  for (size_t i = 0; i < options.cardinalities.size(); ++i) {
    Tensor start = token_weights(options.cardinalities[i], width);
    start.select(0, 0).zero_();
    embeddings_.push_back(register_parameter(cat("embedding", i), start));
  }
  if (!embeddings_.empty())
    category_bias_ =
        register_parameter("category_bias", token_weights(static_cast<int64_t>(embeddings_.size()), width));
  const FtTransformerBlock::Sizes sizes{
      .width = width,
      .heads = options.heads,
      .ffn_width = options.ffn_width.value.value_or(std::max<int64_t>(1, width * 4 / 3)),
      .attention_dropout = options.attention_dropout,
      .ffn_dropout = options.ffn_dropout,
      .residual_dropout = options.residual_dropout};
  for (int64_t i = 0; i < options.blocks; ++i)
    blocks_.push_back(register_module(cat("block", i), std::make_shared<FtTransformerBlock>(sizes, i > 0)));
  head_norm_ = register_module("head_norm", std::make_shared<nn::LayerNormImpl>(std::vector<int64_t>{width}));
  head_ = register_module("head", nn::Linear(width, options.target.num_outputs));
}

Tensor FtTransformer::forward(const Batch& batch) {
  const Tensor numbers = detail::table_numbers(batch, options_.num_numbers, options_.cardinalities, "FtTransformer");
  std::vector<Tensor> tokens = {first_token_.expand({numbers.size(0), 1, options_.width})};
  if (options_.num_numbers > 0) tokens.push_back(numbers.unsqueeze(2) * number_weight_ + number_bias_);
  if (!embeddings_.empty()) {
    std::vector<Tensor> columns;
    for (size_t i = 0; i < embeddings_.size(); ++i)
      columns.push_back(
          detail::embed_category(embeddings_[i], batch["categories"], static_cast<int64_t>(i), "FtTransformer"));
    tokens.push_back(at::stack(columns, 1) + category_bias_);
  }
  Tensor x = at::cat(tokens, 1);
  for (size_t i = 0; i < blocks_.size(); ++i) x = blocks_[i]->forward(x, /*first_only=*/i + 1 == blocks_.size());
  return head_(head_norm_->forward(x.select(1, 0)).relu());
}

[[maybe_unused]] static const bool registered_ft_transformer = Registry<LightningModule>::add<FtTransformer>(
    "FtTransformer", "A transformer over the columns of a table (Gorishniy et al. 2021).");

}  // namespace fulgur
