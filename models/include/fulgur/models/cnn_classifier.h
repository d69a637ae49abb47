#pragma once

#include <torch/nn/modules/conv.h>

#include <memory>
#include <vector>

#include "fulgur/models/classifier.h"
#include "fulgur/models/dense_stack.h"
#include "fulgur/nn/batch_norm.h"

namespace fulgur {

/// A small convolutional network: for each of `channels` a 3x3 convolution without bias, batch norm, 2x2 max pooling
/// and ReLU, then fully connected layers. Inputs (N, in_channels, height, width).
class FULGUR_API CnnClassifier : public Classifier {
 public:
  struct Options {
    int64_t in_channels = 1;
    int64_t height = 28;
    int64_t width = 28;
    int64_t num_classes = 10;
    std::vector<int64_t> channels = {32, 64};
    int64_t hidden = 128;
    double dropout = 0.25;
    std::vector<Spec<PredictionMetric>> metrics = {};
    double label_smoothing = 0;
    std::vector<double> class_weights = {};
    double mixup_alpha = 0;
    double cutmix_alpha = 0;
    int64_t sample_predictions = 0;
    void fields(Fields& f);
  };
  /// Throws a ConfigError if pooling reduces the image to nothing.
  explicit CnnClassifier(const Options& options);
  /// Throws a ConfigError for images of another shape.
  Tensor forward(const Tensor& input) override;

 private:
  Options options_;
  std::vector<torch::nn::Conv2d> convolutions_;
  std::vector<nn::BatchNorm2d> norms_;
  std::shared_ptr<DenseStack> head_;
};

}  // namespace fulgur
