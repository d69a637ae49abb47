#pragma once

#include <memory>
#include <vector>

#include "fulgur/models/tabular_model.h"
#include "fulgur/nn/layer_norm.h"
#include "fulgur/nn/linear.h"

namespace fulgur {

/// A transformer block of FtTransformer: x + attention(norm(x)), then x + ffn(norm(x)) with ReGLU. The first block of
/// the network has no norm before its attention.
class FULGUR_API FtTransformerBlock : public torch::nn::Module {
 public:
  struct Sizes {
    int64_t width, heads, ffn_width;
    double attention_dropout, ffn_dropout, residual_dropout;
  };
  FtTransformerBlock(const Sizes& sizes, bool norm_before_attention);
  /// Maps (N, T, width) to the same shape. With `first_only`, only the first token is computed: (N, 1, width).
  Tensor forward(const Tensor& input, bool first_only);

 private:
  Tensor attention(const Tensor& queries, const Tensor& tokens);
  Tensor residual(const Tensor& x) const;
  Sizes sizes_;
  std::shared_ptr<nn::LayerNormImpl> attention_norm_, ffn_norm_;
  nn::Linear query_{nullptr}, key_{nullptr}, value_{nullptr}, out_{nullptr}, linear1_{nullptr}, linear2_{nullptr};
};

/// FT-Transformer (Gorishniy et al. 2021, https://arxiv.org/abs/2106.11959): each column becomes a token, a number by a
/// weight and a bias, a category by an embedding and a bias; the first token is learned; the outputs are a Linear of
/// ReLU of the norm of the first token. Reads `numbers` and `categories` as TabularMlp does; see TabularModel for
/// targets. The last block computes only the first token, since nothing else is read.
class FULGUR_API FtTransformer : public TabularModel {
 public:
  struct Options {
    int64_t num_numbers = 0;
    std::vector<int64_t> cardinalities = {};
    TabularTask target = {};
    int64_t width = 192;
    int64_t blocks = 3;
    int64_t heads = 8;
    Auto<int64_t> ffn_width = {};
    double attention_dropout = 0.2;
    double ffn_dropout = 0.1;
    double residual_dropout = 0.0;
    void fields(Fields& f);
  };
  /// Throws a ConfigError if heads does not divide width.
  explicit FtTransformer(const Options& options);
  /// Throws a ConfigError for batches of another width, and on the CPU a DataError for a category out of range.
  Tensor forward(const Batch& batch) override;

 private:
  Options options_;
  Tensor first_token_;                  // (width)
  Tensor number_weight_, number_bias_;  // (num_numbers, width), undefined without numbers
  std::vector<Tensor> embeddings_;      // (cardinality, width) each
  Tensor category_bias_;                // (categories, width), undefined without categories
  std::vector<std::shared_ptr<FtTransformerBlock>> blocks_;
  std::shared_ptr<nn::LayerNormImpl> head_norm_;
  nn::Linear head_{nullptr};
};

}  // namespace fulgur
