#pragma once

#include <torch/nn/modules/conv.h>

#include <memory>
#include <string>
#include <vector>

#include "fulgur/models/classifier.h"
#include "fulgur/nn/layer_norm.h"
#include "fulgur/nn/linear.h"

namespace fulgur {

/// A Vision Transformer (Dosovitskiy et al. 2021, arXiv:2010.11929) with torchvision's parameter names (`class_token`,
/// `conv_proj`, `encoder.layers.encoder_layer_0.self_attention.in_proj_weight`, …, `heads.head`); the default sizes are
/// those of ViT-B/16. Images (N, in_channels, image_size, image_size). Initialized as torchvision does: the head with
/// zeros. `layer_norm_eps` is 1e-6 in torchvision and 1e-12 in Hugging Face's models.
class FULGUR_API VisionTransformer : public Classifier {
 public:
  struct FULGUR_API Options {
    int64_t image_size = 224;
    int64_t patch_size = 16;
    int64_t in_channels = 3;
    int64_t num_layers = 12;
    int64_t num_heads = 12;
    int64_t hidden_dim = 768;
    int64_t mlp_dim = 3072;
    int64_t num_classes = 10;
    double dropout = 0;
    double attention_dropout = 0;
    double layer_norm_eps = 1e-6;
    std::string activation_checkpointing = "none";
    std::vector<Spec<PredictionMetric>> metrics = {};
    double label_smoothing = 0;
    std::vector<double> class_weights = {};
    double mixup_alpha = 0;
    double cutmix_alpha = 0;
    int64_t sample_predictions = 0;
    void fields(Fields& f);
  };
  /// One encoder layer; internal.
  class Layer;

  /// Throws a ConfigError if patch_size does not divide image_size, or num_heads does not divide hidden_dim.
  explicit VisionTransformer(const Options& options);
  ~VisionTransformer() override;
  /// Throws a ConfigError for images of another shape or dtype.
  Tensor forward(const Tensor& input) override;

 private:
  void initialize();

  Options options_;
  int64_t checkpoint_every_;  ///< 0 for none
  torch::nn::Conv2d conv_proj_{nullptr};
  Tensor class_token_;    ///< (1, 1, hidden_dim)
  Tensor pos_embedding_;  ///< (1, patches + 1, hidden_dim)
  std::vector<std::shared_ptr<Layer>> layers_;
  std::shared_ptr<nn::LayerNormImpl> ln_;
  nn::Linear head_{nullptr};
};

}  // namespace fulgur
