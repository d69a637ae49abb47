#pragma once

#include <array>
#include <memory>

#include "fulgur/core/export.h"
#include "fulgur/core/options/enum_names.h"
#include "fulgur/core/state/tensor.h"
#include "fulgur/nn/layer_norm.h"
#include "fulgur/nn/linear.h"

namespace fulgur {

/// The function inside the fully connected part: GELU (Hendrycks and Gimpel 2016), or its approximation by tanh, with
/// which GPT-2 was trained.
enum class GptActivation { gelu, gelu_tanh };
constexpr auto enum_names(GptActivation) {
  return std::to_array<EnumName<GptActivation>>(
      {{GptActivation::gelu, "gelu"}, {GptActivation::gelu_tanh, "gelu_tanh"}});
}

/// The sizes of a transformer block.
struct GptBlockOptions {
  int64_t n_embd = 128;
  int64_t n_head = 4;
  double dropout = 0.0;
  bool bias = true;
  GptActivation activation = GptActivation::gelu;
};

/// Causal multi-head self-attention, with LibTorch's fused kernel if available.
class FULGUR_API CausalSelfAttention : public torch::nn::Module {
 public:
  explicit CausalSelfAttention(const GptBlockOptions& options);
  /// Maps (N, T, n_embd) to (N, T, n_embd).
  Tensor forward(const Tensor& input);

  nn::Linear c_attn{nullptr}, c_proj{nullptr};

 private:
  GptBlockOptions options_;
};

/// A Linear to four times the width, GELU, a Linear back, and dropout.
class FULGUR_API GptMlp : public torch::nn::Module {
 public:
  explicit GptMlp(const GptBlockOptions& options);
  Tensor forward(const Tensor& input);

  nn::Linear c_fc{nullptr}, c_proj{nullptr};

 private:
  double dropout_;
  GptActivation activation_;
};

/// One decoder block: x + attention(norm(x)), then x + mlp(norm(x)). Its layers have nanoGPT's names: ln_1, attn, ln_2,
/// mlp.
class FULGUR_API GptBlock : public torch::nn::Module {
 public:
  /// Throws a ConfigError if n_head does not divide n_embd.
  explicit GptBlock(const GptBlockOptions& options);
  /// Maps (N, T, n_embd) to (N, T, n_embd).
  Tensor forward(const Tensor& input);

 private:
  std::shared_ptr<nn::LayerNormImpl> ln_1_, ln_2_;
  std::shared_ptr<CausalSelfAttention> attn_;
  std::shared_ptr<GptMlp> mlp_;
};

}  // namespace fulgur
