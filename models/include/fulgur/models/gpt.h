#pragma once

#include <torch/nn/modules/embedding.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "fulgur/core/contracts/module.h"
#include "fulgur/models/generate.h"
#include "fulgur/models/gpt_block.h"
#include "fulgur/nn/linear.h"

namespace fulgur {

/// Where the tokens of a GPT get their positions from: a learned vector for each, which is added to the token's, or
/// rotations of queries and keys (Llama).
enum class GptPositions { learned, rotary };
constexpr auto enum_names(GptPositions) {
  return std::to_array<EnumName<GptPositions>>({{GptPositions::learned, "learned"}, {GptPositions::rotary, "rotary"}});
}

/// The keys and values of all blocks, for `GPT::begin` and `GPT::extend`.
class GptCache {
 public:
  /// Room for `capacity` tokens of each sample.
  explicit GptCache(int64_t capacity) : capacity_(capacity) {}

 private:
  friend class GPT;
  int64_t capacity_;
  std::vector<KeyValueCache> blocks_;
};

/// A decoder-only transformer for text, with GPT-2's architecture and nanoGPT's parameter names (`transformer.wte`,
/// `transformer.h.0.attn.c_attn`, …, `lm_head`): token and position embeddings, blocks, a final norm, and an output
/// layer that shares its weight with the token embedding. Weights are initialized like GPT-2's: normal with standard
/// deviation 0.02, those at the end of a residual branch with 0.02 / sqrt(2 n_layer). docs/memory.md says what
/// activation_checkpointing saves. With `activation: gelu_tanh` and the key map `hf_gpt2`, it computes what Hugging
/// Face's GPT2LMHeadModel does; with `positions: rotary`, `norm: rms`, `mlp: swiglu`, `bias: false` and the key map
/// `hf_llama`, what LlamaForCausalLM does.
///
/// `batch[0]` are tokens (N, T) int64 with T up to block_size, `batch[1]` the next tokens, in the same shape; -100 is
/// excluded from the loss, the mean cross entropy per token. Logs `train_loss`, `val_loss`, `val_perplexity`,
/// `test_loss`, `test_perplexity`; a perplexity is exp of the mean loss over all tokens of the stage, and of all ranks.
/// Prediction returns `prediction` (N, T) int64, the most probable next token at each position, and its `probability`
/// (N, T). With `generate.max_new_tokens`, it returns `generated` (N, max_new_tokens) int64 instead: `generate` for the
/// prompts `batch[0]`, whose lengths are those of the entry `mask` (N, T) bool, and whose indices the entry `index`
/// (N), where the batch has them.
class FULGUR_API GPT : public LightningModule {
 public:
  struct Options {
    int64_t vocab_size = 256;
    int64_t block_size = 128;
    int64_t n_layer = 4;
    int64_t n_head = 4;
    int64_t n_embd = 128;
    double dropout = 0.0;
    bool bias = true;
    GptActivation activation = GptActivation::gelu;
    std::string activation_checkpointing = "none";
    GptPositions positions = GptPositions::learned;
    Auto<double> rope_theta = {};
    GptNormKind norm = GptNormKind::layer;
    double norm_eps = 1e-5;
    GptMlpKind mlp = GptMlpKind::gelu;
    Auto<int64_t> mlp_hidden = {};
    Auto<int64_t> n_kv_head = {};
    bool tie_weights = true;
    GenerateOptions generate = {};
    void fields(Fields& f);
  };
  /// Throws a ConfigError if n_embd is not a multiple of n_head, or n_head of n_kv_head, for rotary positions with
  /// heads of an odd size, for options of parts that the model does not have, or for an invalid
  /// activation_checkpointing.
  explicit GPT(const Options& options);

  /// Returns logits (N, T, vocab_size) for tokens (N, T) int64. Throws a DataError for T above block_size or, on the
  /// CPU, for a token outside [0, vocab_size).
  Tensor forward(const Tensor& tokens);

  /// Begins sequences: tokens (N, T) int64, of which each row has `lengths` (N) int64. Fills the cache, and returns the
  /// logits (N, vocab_size) after the last token of each row. Computes no gradients. Throws like `forward`.
  Tensor begin(const Tensor& tokens, const Tensor& lengths, GptCache& cache);
  /// Adds one token to each sequence: tokens (N) int64 at `positions` (N) int64, all below `used`, which is at most the
  /// cache's capacity. Returns the logits (N, vocab_size) after them. Computes no gradients.
  Tensor extend(const Tensor& tokens, const Tensor& positions, int64_t used, GptCache& cache);
  const Options& options() const { return options_; }

  StepOutput training_step(const Batch& batch, int64_t batch_idx) override;
  /// `embedding`, `h.0`, …, `head`.
  LayerChain stages() override;
  /// Divides attention by heads, the fully connected parts by their width, and embedding and output layer by the
  /// vocabulary.
  TensorPlan tensor_plan() const override;
  Outputs validation_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) override;
  Outputs test_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) override;
  Outputs predict_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) override;
  std::optional<int64_t> num_tokens(const Batch& batch) const override { return batch[0].numel(); }
  void on_validation_epoch_start() override;
  void on_validation_epoch_end() override;
  void on_test_epoch_start() override;
  void on_test_epoch_end() override;

 private:
  void initialize();
  Tensor embed(const Tensor& tokens, const Tensor& positions, GptContext& context);
  /// Rotations for tokens at `positions`, undefined: 0, …, length - 1, in the dtype and on the device of `x`.
  nn::Rotation rotation_of(const Tensor& x, const Tensor& positions, int64_t length) const;
  Tensor block(size_t index, const Tensor& x, const GptContext& context);
  Tensor blocks_with(Tensor x, const GptContext& context, GptCache& cache);
  Tensor loss_of(const Batch& batch);
  Tensor loss_of(const Tensor& logits, const Batch& batch) const;
  void evaluate(const Batch& batch, const char* loss_name);
  void begin_perplexity();
  void log_perplexity(const char* name);

  Options options_;
  int64_t checkpoint_every_;  ///< 0 for none
  torch::nn::Embedding wte_{nullptr}, wpe_{nullptr};
  std::vector<std::shared_ptr<GptBlock>> blocks_;
  GptNorm ln_f_;
  nn::Linear lm_head_{nullptr};
  Tensor evaluated_;  ///< sum of losses and number of tokens of the evaluation so far, on the device
};

}  // namespace fulgur
