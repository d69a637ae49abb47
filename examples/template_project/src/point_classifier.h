#pragma once

#include <fulgur/core/contracts/module.h>
#include <torch/nn/modules/linear.h>

/// A network with two hidden layers that finds the class of a point in the plane.
class PointClassifier : public fulgur::LightningModule {
 public:
  struct Options {
    int64_t hidden = 32;
    int64_t num_classes = 3;
    void fields(fulgur::Fields& f) {
      f(hidden, "hidden", "Width of the hidden layers.").at_least(1);
      f(num_classes, "num_classes", "Number of classes.").at_least(2);
    }
  };
  explicit PointClassifier(const Options& options);

  /// Points (N, 2) to scores (N, num_classes).
  fulgur::Tensor forward(const fulgur::Tensor& points);
  fulgur::StepOutput training_step(const fulgur::Batch& batch, int64_t batch_idx) override;
  fulgur::Outputs validation_step(const fulgur::Batch& batch, int64_t batch_idx, int64_t loader_idx) override;
  fulgur::Outputs predict_step(const fulgur::Batch& batch, int64_t batch_idx, int64_t loader_idx) override;

 private:
  torch::nn::Linear in_, middle_, out_;
};
