#pragma once

#include <torch/nn/modules/embedding.h>

#include <memory>
#include <string>
#include <vector>

#include "fulgur/core/contracts/metric.h"
#include "fulgur/core/contracts/module.h"
#include "fulgur/models/classifier.h"
#include "fulgur/models/stage_metrics.h"
#include "fulgur/nn/layer_norm.h"
#include "fulgur/nn/linear.h"

namespace fulgur {

/// A transformer encoder that classifies texts, with the architecture of BERT (Devlin et al. 2019): embeddings of
/// tokens, learned positions and token types, layers whose norms follow the residual sums, a pooler (a linear layer and
/// tanh) of the first token, and a linear head. The default sizes are those of BERT-base. Its parameters are named
/// `embeddings.token`, `embeddings.position`, `embeddings.type`, `embeddings.norm`, `layers.0.attention.in_proj`,
/// `layers.0.attention.out_proj`, `layers.0.norm_1`, `layers.0.widen`, `layers.0.narrow`, `layers.0.norm_2`, …,
/// `pooler`, `classifier`. Weights are initialized as BERT's: normal with standard deviation 0.02, biases with zero.
/// With the key map `hf_bert`, it computes what Hugging Face's BertForSequenceClassification does.
///
/// Reads the batches of LabelledTextDataModule: `tokens` (N, T) int64 with T up to max_length, `mask` (N, T) bool, true
/// for tokens that count (absent: all), and `label` (N) int64; and, if the batch has it, `token_types` (N, T) int64,
/// else they are 0. Each text must have a token that counts. The loss is the cross entropy. Logs `train_loss`,
/// `val_loss`, `val_acc`, `test_loss`, `test_acc`, and further metrics on request; prediction returns `probabilities`
/// (N, C) and `prediction` (N) int64.
class FULGUR_API BertClassifier : public LightningModule {
 public:
  struct FULGUR_API Options {
    int64_t vocab_size = 30522;
    int64_t max_length = 512;
    int64_t type_vocab_size = 2;
    int64_t num_layers = 12;
    int64_t num_heads = 12;
    int64_t hidden_dim = 768;
    int64_t mlp_dim = 3072;
    int64_t num_classes = 2;
    double dropout = 0.1;
    double layer_norm_eps = 1e-12;
    double label_smoothing = 0;
    std::vector<double> class_weights = {};
    std::string activation_checkpointing = "none";
    std::vector<Spec<PredictionMetric>> metrics = {};
    void fields(Fields& f);
  };
  /// One encoder layer; internal.
  class Layer;

  /// Throws a ConfigError if num_heads does not divide hidden_dim, or for an invalid activation_checkpointing.
  explicit BertClassifier(const Options& options);
  ~BertClassifier() override;

  /// Returns logits (N, num_classes). `mask` and `token_types` may be undefined. Throws a DataError for tensors of
  /// another shape or dtype, for T above max_length and, on the CPU, for a token or type out of range.
  Tensor forward(const Tensor& tokens, const Tensor& mask, const Tensor& token_types = {});

  StepOutput training_step(const Batch& batch, int64_t batch_idx) override;
  Outputs validation_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) override;
  Outputs test_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) override;
  Outputs predict_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) override;

 private:
  Tensor logits_of(const Batch& batch);
  Tensor embed(const Tensor& tokens, const Tensor& token_types);
  void evaluate(const Batch& batch, const std::string& stage, int64_t loader_idx);

  Options options_;
  int64_t checkpoint_every_;  ///< 0 for none
  torch::nn::Embedding token_{nullptr}, position_{nullptr}, type_{nullptr};
  std::shared_ptr<nn::LayerNormImpl> norm_;
  std::vector<std::shared_ptr<Layer>> layers_;
  nn::Linear pooler_{nullptr}, classifier_{nullptr};
  StageMetrics metrics_;
  ClassWeights class_weights_;
};

}  // namespace fulgur
