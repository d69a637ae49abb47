#pragma once

#include <torch/nn/modules/embedding.h>

#include <memory>
#include <string>
#include <vector>

#include "fulgur/core/contracts/module.h"
#include "fulgur/models/gpt_block.h"
#include "fulgur/nn/linear.h"

namespace fulgur {

/// A decoder-only transformer for text, with GPT-2's architecture and nanoGPT's parameter names (`transformer.wte`,
/// `transformer.h.0.attn.c_attn`, …, `lm_head`): token and position embeddings, blocks, a final norm, and an output
/// layer that shares its weight with the token embedding. Weights are initialized like GPT-2's: normal with standard
/// deviation 0.02, those at the end of a residual branch with 0.02 / sqrt(2 n_layer). docs/memory.md says what
/// activation_checkpointing saves. With `activation: gelu_tanh` and the key map `hf_gpt2`, it computes what Hugging
/// Face's GPT2LMHeadModel does.
///
/// `batch[0]` are tokens (N, T) int64 with T up to block_size, `batch[1]` the next tokens, in the same shape; -100 is
/// excluded from the loss, the mean cross entropy per token. Logs `train_loss`, `val_loss`, `val_perplexity`,
/// `test_loss`, `test_perplexity`; a perplexity is exp of the mean loss over all tokens of the stage, and of all ranks.
/// Prediction returns `prediction` (N, T) int64, the most probable next token at each position, and its `probability`
/// (N, T).
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
    void fields(Fields& f);
  };
  /// Throws a ConfigError if n_embd is not a multiple of n_head, or for an invalid activation_checkpointing.
  explicit GPT(const Options& options);

  /// Returns logits (N, T, vocab_size) for tokens (N, T) int64. Throws a DataError for T above block_size or, on the
  /// CPU, for a token outside [0, vocab_size).
  Tensor forward(const Tensor& tokens);

  StepOutput training_step(const Batch& batch, int64_t batch_idx) override;
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
  Tensor loss_of(const Batch& batch);
  void evaluate(const Batch& batch, const char* loss_name);
  void begin_perplexity();
  void log_perplexity(const char* name);

  Options options_;
  int64_t checkpoint_every_;  ///< 0 for none
  torch::nn::Embedding wte_{nullptr}, wpe_{nullptr};
  std::vector<std::shared_ptr<GptBlock>> blocks_;
  std::shared_ptr<nn::LayerNormImpl> ln_f_;
  nn::Linear lm_head_{nullptr};
  Tensor evaluated_;  ///< sum of losses and number of tokens of the evaluation so far, on the device
};

}  // namespace fulgur
