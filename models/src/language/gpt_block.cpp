#include "fulgur/models/gpt_block.h"

#include <ATen/ops/dropout.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>

#include <optional>
#include <tuple>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace {

nn::Linear gpt_linear(int64_t in, int64_t out, bool bias) { return nn::Linear(nn::LinearOptions(in, out).bias(bias)); }

// at::dropout with probability zero would multiply by a mask of ones, and store it.
Tensor gpt_drop(const Tensor& x, double share, bool training) {
  return share > 0 && training ? at::dropout(x, share, true) : x;
}

int64_t hidden_width(const GptBlockOptions& options) {
  if (options.mlp_hidden.value) return *options.mlp_hidden.value;
  if (options.mlp == GptMlpKind::gelu) return 4 * options.n_embd;
  return ((8 * options.n_embd + 2) / 3 + 63) / 64 * 64;
}

// Heads (N, H, T, size) of keys and values as often as queries share them.
Tensor for_each_query(const Tensor& x, int64_t groups) {
  const int64_t samples = x.size(0), heads = x.size(1), length = x.size(2), size = x.size(3);
  return x.unsqueeze(2).expand({samples, heads, groups, length, size}).reshape({samples, heads * groups, length, size});
}

// Those of the first tokens of sequences without positions of their own.
nn::Rotation first_of(const nn::Rotation& all, int64_t length) {
  if (all.cos.dim() > 2 || all.cos.size(0) == length) return all;
  return {all.cos.narrow(0, 0, length), all.sin.narrow(0, 0, length)};
}

Tensor attend(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& mask, double dropout) {
  const std::optional<Tensor> only = mask.defined() ? std::optional(mask) : std::nullopt;
  const int64_t groups = query.size(1) / key.size(1);
  const bool causal = !mask.defined();
  if (groups == 1) return at::scaled_dot_product_attention(query, key, value, only, dropout, causal);
  // Of LibTorch's kernels, only flash attention shares keys without a copy and without storing all scores.
  // Tensors on `meta` stand for those of a GPU.
  const bool is_half = query.scalar_type() == at::kBFloat16 || query.scalar_type() == at::kHalf;
  if ((query.is_cuda() || query.is_meta()) && is_half && causal)
    return at::scaled_dot_product_attention(query, key, value, only, dropout, causal, std::nullopt,
                                            /*enable_gqa=*/true);
  return at::scaled_dot_product_attention(query, for_each_query(key, groups), for_each_query(value, groups), only,
                                          dropout, causal);
}

}  // namespace

CausalSelfAttention::CausalSelfAttention(const GptBlockOptions& options)
    : options_(options), n_kv_head_(options.n_kv_head.value.value_or(options.n_head)) {
  if (options.n_head < 1 || options.n_embd < 1 || options.n_embd % options.n_head != 0)
    throw ConfigError(cat("[models.GptBlock] n_embd must be a multiple of n_head; got n_embd ", options.n_embd,
                          " and n_head ", options.n_head, "."));
  if (n_kv_head_ < 1 || options.n_head % n_kv_head_ != 0)
    throw ConfigError(cat("[models.GptBlock] n_head must be a multiple of n_kv_head; got n_head ", options.n_head,
                          " and n_kv_head ", n_kv_head_, "."));
  const int64_t of_keys = options.n_embd / options.n_head * n_kv_head_;
  c_attn = register_module("c_attn", gpt_linear(options.n_embd, options.n_embd + 2 * of_keys, options.bias));
  c_proj = register_module("c_proj", gpt_linear(options.n_embd, options.n_embd, options.bias));
}

Tensor CausalSelfAttention::forward(const Tensor& input, const GptContext& context, KeyValueCache* cache) {
  const int64_t size = options_.n_embd / options_.n_head;
  const Tensor joined = c_attn(input);
  // A rank that has only a part of the layer has the same part of queries, keys and values.
  const int64_t samples = joined.size(0), length = joined.size(1);
  const int64_t divided_by = size * (options_.n_head + 2 * n_kv_head_) / joined.size(2);
  const int64_t n_head = options_.n_head / divided_by, n_kv_head = n_kv_head_ / divided_by;
  const int64_t width = size * n_head, of_keys = size * n_kv_head;
  const auto parts = joined.split_with_sizes({width, of_keys, of_keys}, /*dim=*/2);
  const auto heads = [&](const Tensor& x, int64_t count) {
    return x.view({samples, length, count, size}).transpose(1, 2);
  };
  Tensor query = heads(parts[0], n_head), key = heads(parts[1], n_kv_head), value = heads(parts[2], n_kv_head);
  if (context.rotation) {
    const nn::Rotation rotation = first_of(context.rotation, length);
    query = nn::rotate(query, rotation);
    key = nn::rotate(key, rotation);
  }
  if (cache) std::tie(key, value) = cache->put(key, value, context.places, context.used);
  const Tensor mixed = attend(query, key, value, context.mask, is_training() ? options_.dropout : 0.0);
  return gpt_drop(c_proj(mixed.transpose(1, 2).reshape({samples, length, width})), options_.dropout, is_training());
}

GptMlp::GptMlp(const GptBlockOptions& options)
    : dropout_(options.dropout), kind_(options.mlp), activation_(options.activation) {
  const int64_t hidden = hidden_width(options);
  if (hidden < 1) throw ConfigError(cat("[models.GptBlock] mlp_hidden must be at least 1; got ", hidden, "."));
  const int64_t rows = kind_ == GptMlpKind::swiglu ? 2 * hidden : hidden;
  c_fc = register_module("c_fc", gpt_linear(options.n_embd, rows, options.bias));
  c_proj = register_module("c_proj", gpt_linear(hidden, options.n_embd, options.bias));
}

Tensor GptMlp::forward(const Tensor& input) {
  Tensor wide = c_fc(input);
  if (kind_ == GptMlpKind::swiglu) {
    const auto parts = wide.chunk(2, -1);
    wide = at::silu(parts[0]) * parts[1];
  } else {
    wide = at::gelu(wide, activation_ == GptActivation::gelu_tanh ? "tanh" : "none");
  }
  return gpt_drop(c_proj(wide), dropout_, is_training());
}

GptNorm::GptNorm(torch::nn::Module& parent, const char* name, const GptBlockOptions& options) {
  if (options.norm == GptNormKind::rms) {
    rms_ = parent.register_module(name, std::make_shared<nn::RMSNormImpl>(options.n_embd, options.norm_eps));
  } else {
    const auto of_width = nn::LayerNormOptions({options.n_embd}).eps(options.norm_eps);
    layer_ = parent.register_module(name, std::make_shared<nn::LayerNormImpl>(of_width, options.bias));
  }
}

TensorPlan gpt_tensor_plan(const GptBlockOptions& options) {
  const int64_t heads = options.n_head, kv_heads = options.n_kv_head.value.value_or(heads);
  const int64_t size = options.n_embd / heads, hidden = hidden_width(options);
  const FusedPart of_keys{.outputs = size * kv_heads, .units = kv_heads, .unit = "n_kv_head"};
  const FusedPart wide{.outputs = hidden, .units = hidden, .unit = "mlp_hidden"};
  std::vector<FusedPart> of_mlp{wide};
  if (options.mlp == GptMlpKind::swiglu) of_mlp.push_back(wide);
  return {{.pattern = "*.attn.c_attn",
           .split = TensorSplit::column,
           .parts = {{.outputs = size * heads, .units = heads, .unit = "n_head"}, of_keys, of_keys}},
          {.pattern = "*.attn.c_proj", .split = TensorSplit::row},
          {.pattern = "*.mlp.c_fc", .split = TensorSplit::column, .parts = of_mlp},
          {.pattern = "*.mlp.c_proj", .split = TensorSplit::row}};
}

GptBlock::GptBlock(const GptBlockOptions& options) {
  attn_ = std::make_shared<CausalSelfAttention>(options);
  ln_1_ = GptNorm(*this, "ln_1", options);
  register_module("attn", attn_);
  ln_2_ = GptNorm(*this, "ln_2", options);
  mlp_ = register_module("mlp", std::make_shared<GptMlp>(options));
}

Tensor GptBlock::forward(const Tensor& input, const GptContext& context, KeyValueCache* cache) {
  const Tensor x = input + attn_->forward(ln_1_.forward(input), context, cache);
  return x + mlp_->forward(ln_2_.forward(x));
}

}  // namespace fulgur
