#pragma once

#include <torch/nn/modules/conv.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/models/classifier.h"
#include "fulgur/nn/layer_norm.h"
#include "fulgur/nn/linear.h"

namespace fulgur {

/// A ConvNeXt (Liu et al. 2022, arXiv:2201.03545) with torchvision's parameter names (`features.0.0`,
/// `features.1.0.block.0`, `features.1.0.layer_scale`, …, `classifier.2`); the defaults are those of ConvNeXt-Tiny.
/// Blocks have layer scale and stochastic depth: in training, a residual branch is left out for a sample with a
/// probability that grows from 0 in the first block to `stochastic_depth` in the last. Images (N, in_channels, H, W)
/// whose sides are at least 4 · 2^(stages - 1) pixels. Initialized as torchvision does: convolutions and linear layers
/// with a truncated normal of deviation 0.02, biases 0.
class FULGUR_API ConvNeXt : public Classifier {
 public:
  struct FULGUR_API Options {
    int64_t in_channels = 3;
    int64_t num_classes = 10;
    std::vector<int64_t> depths = {3, 3, 9, 3};
    std::vector<int64_t> widths = {96, 192, 384, 768};
    double stochastic_depth = 0.1;
    double layer_scale = 1e-6;
    std::string activation_checkpointing = "none";
    std::vector<Spec<PredictionMetric>> metrics = {};
    double label_smoothing = 0;
    std::vector<double> class_weights = {};
    double mixup_alpha = 0;
    double cutmix_alpha = 0;
    int64_t sample_predictions = 0;
    void fields(Fields& f);
  };
  /// One residual block; internal.
  class Block;

  /// Throws a ConfigError if `depths` and `widths` have different lengths.
  explicit ConvNeXt(const Options& options);
  ~ConvNeXt() override;
  /// Throws a ConfigError for images of another shape or dtype.
  Tensor forward(const Tensor& input) override;

 private:
  /// What begins a stage: the convolution of the stem and its norm, or the norm and the convolution after it.
  struct Downsampling {
    torch::nn::Conv2d convolution{nullptr};
    std::shared_ptr<nn::LayerNormImpl> norm;
    bool norm_is_first = true;
    Tensor forward(const Tensor& input) const;
  };
  void initialize();

  Options options_;
  int64_t checkpoint_every_;  ///< 0 for none
  std::vector<Downsampling> downsamplings_;
  std::vector<std::vector<std::shared_ptr<Block>>> stages_;
  std::shared_ptr<nn::LayerNormImpl> norm_;
  nn::Linear head_{nullptr};
};

}  // namespace fulgur
