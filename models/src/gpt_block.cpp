#include "fulgur/models/gpt_block.h"

#include <ATen/ops/dropout.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace {

nn::Linear linear(int64_t in, int64_t out, bool bias) { return nn::Linear(nn::LinearOptions(in, out).bias(bias)); }

// at::dropout with probability zero would multiply by a mask of ones, and store it.
Tensor drop(const Tensor& x, double share, bool training) {
  return share > 0 && training ? at::dropout(x, share, true) : x;
}

}  // namespace

CausalSelfAttention::CausalSelfAttention(const GptBlockOptions& options) : options_(options) {
  if (options.n_head < 1 || options.n_embd < 1 || options.n_embd % options.n_head != 0)
    throw ConfigError(cat("[models.GptBlock] n_embd must be a multiple of n_head; got n_embd ", options.n_embd,
                          " and n_head ", options.n_head, "."));
  c_attn = register_module("c_attn", linear(options.n_embd, 3 * options.n_embd, options.bias));
  c_proj = register_module("c_proj", linear(options.n_embd, options.n_embd, options.bias));
}

Tensor CausalSelfAttention::forward(const Tensor& input) {
  const int64_t samples = input.size(0), length = input.size(1), width = options_.n_embd;
  const auto parts = c_attn(input).split(width, /*dim=*/2);
  const auto heads = [&](const Tensor& x) {
    return x.view({samples, length, options_.n_head, width / options_.n_head}).transpose(1, 2);
  };
  const double share = is_training() ? options_.dropout : 0.0;
  const Tensor mixed = at::scaled_dot_product_attention(heads(parts[0]), heads(parts[1]), heads(parts[2]), {}, share,
                                                        /*is_causal=*/true);
  return drop(c_proj(mixed.transpose(1, 2).reshape({samples, length, width})), options_.dropout, is_training());
}

GptMlp::GptMlp(const GptBlockOptions& options) : dropout_(options.dropout), activation_(options.activation) {
  c_fc = register_module("c_fc", linear(options.n_embd, 4 * options.n_embd, options.bias));
  c_proj = register_module("c_proj", linear(4 * options.n_embd, options.n_embd, options.bias));
}

Tensor GptMlp::forward(const Tensor& input) {
  const char* const approximation = activation_ == GptActivation::gelu_tanh ? "tanh" : "none";
  return drop(c_proj(at::gelu(c_fc(input), approximation)), dropout_, is_training());
}

GptBlock::GptBlock(const GptBlockOptions& options) {
  attn_ = std::make_shared<CausalSelfAttention>(options);
  ln_1_ = register_module("ln_1",
                          std::make_shared<nn::LayerNormImpl>(nn::LayerNormOptions({options.n_embd}), options.bias));
  register_module("attn", attn_);
  ln_2_ = register_module("ln_2",
                          std::make_shared<nn::LayerNormImpl>(nn::LayerNormOptions({options.n_embd}), options.bias));
  mlp_ = register_module("mlp", std::make_shared<GptMlp>(options));
}

Tensor GptBlock::forward(const Tensor& input) {
  const Tensor x = input + attn_->forward(ln_1_->forward(input));
  return x + mlp_->forward(ln_2_->forward(x));
}

}  // namespace fulgur
