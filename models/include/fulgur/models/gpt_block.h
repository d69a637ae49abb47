#pragma once

#include <array>
#include <memory>
#include <utility>

#include "fulgur/core/contracts/tensor_plan.h"
#include "fulgur/core/export.h"
#include "fulgur/core/options/enum_names.h"
#include "fulgur/core/options/field_traits.h"
#include "fulgur/core/state/tensor.h"
#include "fulgur/nn/layer_norm.h"
#include "fulgur/nn/linear.h"
#include "fulgur/nn/rms_norm.h"
#include "fulgur/nn/rotary.h"

namespace fulgur {

/// The function inside the fully connected part: GELU (Hendrycks and Gimpel 2016), or its approximation by tanh, with
/// which GPT-2 was trained.
enum class GptActivation { gelu, gelu_tanh };
constexpr auto enum_names(GptActivation) {
  return std::to_array<EnumName<GptActivation>>(
      {{GptActivation::gelu, "gelu"}, {GptActivation::gelu_tanh, "gelu_tanh"}});
}

/// The norms of a block: LayerNorm (GPT-2), or RMSNorm, which has no bias (Llama).
enum class GptNormKind { layer, rms };
constexpr auto enum_names(GptNormKind) {
  return std::to_array<EnumName<GptNormKind>>({{GptNormKind::layer, "layer"}, {GptNormKind::rms, "rms"}});
}

/// The fully connected part of a block: GELU between two layers (GPT-2), or SwiGLU (Shazeer 2020; Llama).
enum class GptMlpKind { gelu, swiglu };
constexpr auto enum_names(GptMlpKind) {
  return std::to_array<EnumName<GptMlpKind>>({{GptMlpKind::gelu, "gelu"}, {GptMlpKind::swiglu, "swiglu"}});
}

/// The sizes and parts of a transformer block.
struct GptBlockOptions {
  int64_t n_embd = 128;
  int64_t n_head = 4;
  double dropout = 0.0;
  bool bias = true;
  GptActivation activation = GptActivation::gelu;  ///< of `GptMlpKind::gelu`
  Auto<int64_t> n_kv_head = {};                    ///< heads of keys and values; auto: n_head
  GptNormKind norm = GptNormKind::layer;
  double norm_eps = 1e-5;
  GptMlpKind mlp = GptMlpKind::gelu;
  /// Width inside the fully connected part; auto: 4 n_embd, or for swiglu 8/3 n_embd, rounded up to a multiple of 64.
  Auto<int64_t> mlp_hidden = {};
};

/// How ranks divide a block: attention by heads, the fully connected part by `mlp_hidden`.
FULGUR_API TensorPlan gpt_tensor_plan(const GptBlockOptions& options);

/// The keys and values that an attention has computed, in room for `capacity` tokens of each sample. The first `put`
/// allocates it.
class FULGUR_API KeyValueCache {
 public:
  explicit KeyValueCache(int64_t capacity) : capacity_(capacity) {}
  /// Stores keys and values (N, heads, T, size) of new tokens. Without `places` they are the first ones, and are
  /// returned. With `places`, (N) int64 below the capacity, T is 1; returns those of the first `used` tokens.
  std::pair<Tensor, Tensor> put(const Tensor& keys, const Tensor& values, const Tensor& places, int64_t used);

 private:
  int64_t capacity_;
  Tensor keys_, values_;  // (N, heads, capacity, size)
};

/// What the blocks of a GPT have in common in one forward.
struct GptContext {
  nn::Rotation rotation = {};  ///< of queries and keys, for as many tokens or more; empty: none
  Tensor places = {};          ///< (N) int64: where the one new token of each sample is put in the caches
  Tensor mask = {};            ///< (N, 1, 1, used) bool: what it attends to; undefined: attention is causal
  int64_t used = 0;            ///< tokens of the caches that are read
};

/// Causal multi-head self-attention, with LibTorch's fused kernel if available. With n_kv_head below n_head, groups of
/// heads share keys and values (Ainslie et al. 2023). `c_attn` has the rows of all queries, then keys, then values.
class FULGUR_API CausalSelfAttention : public torch::nn::Module {
 public:
  explicit CausalSelfAttention(const GptBlockOptions& options);
  /// Maps (N, T, n_embd) to (N, T, n_embd).
  Tensor forward(const Tensor& input, const GptContext& context = {}, KeyValueCache* cache = nullptr);

  nn::Linear c_attn{nullptr}, c_proj{nullptr};

 private:
  GptBlockOptions options_;
  int64_t n_kv_head_;
};

/// A Linear to `mlp_hidden`, GELU, a Linear back, and dropout. For SwiGLU, `c_fc` has the rows of the gate, then those
/// of the values that SiLU of the gate multiplies.
class FULGUR_API GptMlp : public torch::nn::Module {
 public:
  explicit GptMlp(const GptBlockOptions& options);
  Tensor forward(const Tensor& input);

  nn::Linear c_fc{nullptr}, c_proj{nullptr};

 private:
  double dropout_;
  GptMlpKind kind_;
  GptActivation activation_;
};

/// A LayerNorm or an RMSNorm, which is registered in `parent` as `name`.
class FULGUR_API GptNorm {
 public:
  GptNorm() = default;
  GptNorm(torch::nn::Module& parent, const char* name, const GptBlockOptions& options);
  Tensor forward(const Tensor& input) const { return rms_ ? rms_->forward(input) : layer_->forward(input); }

 private:
  std::shared_ptr<nn::LayerNormImpl> layer_;
  std::shared_ptr<nn::RMSNormImpl> rms_;
};

/// One decoder block: x + attention(norm(x)), then x + mlp(norm(x)). Its layers have nanoGPT's names: ln_1, attn, ln_2,
/// mlp.
class FULGUR_API GptBlock : public torch::nn::Module {
 public:
  /// Throws a ConfigError if n_head does not divide n_embd, or n_kv_head does not divide n_head.
  explicit GptBlock(const GptBlockOptions& options);
  /// Maps (N, T, n_embd) to (N, T, n_embd).
  Tensor forward(const Tensor& input, const GptContext& context = {}, KeyValueCache* cache = nullptr);

 private:
  GptNorm ln_1_, ln_2_;
  std::shared_ptr<CausalSelfAttention> attn_;
  std::shared_ptr<GptMlp> mlp_;
};

}  // namespace fulgur
