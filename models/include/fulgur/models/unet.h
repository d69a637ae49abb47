#pragma once

#include <torch/nn/modules/conv.h>

#include <memory>
#include <string>
#include <vector>

#include "fulgur/core/contracts/module.h"
#include "fulgur/models/classifier.h"
#include "fulgur/models/stage_metrics.h"

namespace fulgur {

/// A U-Net for segmentation (Ronneberger et al. 2015, arXiv:1505.04597) with padded convolutions and batch norm:
/// `depth` times two 3x3 convolutions and 2x2 max pooling, then the same upwards, by transposed 2x2 convolutions, with
/// the maps of the way down beside them. Images (N, in_channels, H, W) of any size of at least 2^depth pixels: an odd
/// map is pooled without its last row or column, and the map that comes back is padded with zeros. Convolutions are
/// initialized normal with He's `fan_out`.
///
/// `batch[1]` are the classes of the pixels (N, H, W) int64; -100 is excluded from loss and metrics. The loss is the
/// mean cross entropy per pixel. Logs `train_loss`, `val_loss`, `test_loss`, and the metrics, by default `val_iou` and
/// `val_dice`. Prediction returns `prediction` (N, H, W) int64 and its `probability`. On request, each validation logs
/// `val_samples`, images, and `val_masks`, their predicted classes as brightness.
class FULGUR_API UNet : public LightningModule {
 public:
  struct FULGUR_API Options {
    int64_t in_channels = 3;
    int64_t num_classes = 2;
    int64_t width = 64;
    int64_t depth = 4;
    std::string activation_checkpointing = "none";
    std::vector<double> class_weights = {};
    std::vector<Spec<PredictionMetric>> metrics = {Spec<PredictionMetric>("IoU"), Spec<PredictionMetric>("Dice")};
    int64_t sample_predictions = 0;
    void fields(Fields& f);
  };
  /// Two convolutions with batch norm and ReLU; internal.
  class DoubleConvolution;

  explicit UNet(const Options& options);
  ~UNet() override;
  /// Maps images to logits (N, num_classes, H, W). Throws a ConfigError for images of another shape or dtype.
  Tensor forward(const Tensor& input);

  StepOutput training_step(const Batch& batch, int64_t batch_idx) override;
  Outputs validation_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) override;
  void on_validation_batch_end(const Outputs& outputs, const Batch& batch, int64_t batch_idx,
                               int64_t loader_idx) override;
  Outputs test_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) override;
  Outputs predict_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) override;

 private:
  /// Returns the logits.
  Tensor evaluate(const Batch& batch, const std::string& stage, int64_t loader_idx);
  Tensor loss_of(const Tensor& logits, const Tensor& target, const Tensor& class_weights = {}) const;
  Tensor run_block(size_t block, const Tensor& input);
  bool logs_samples(int64_t batch_idx, int64_t loader_idx) const {
    return options_.sample_predictions > 0 && batch_idx == 0 && loader_idx == 0;
  }

  Options options_;
  int64_t checkpoint_every_;                                ///< 0 for none
  std::vector<std::shared_ptr<DoubleConvolution>> blocks_;  ///< down, in the middle, and up
  std::vector<torch::nn::ConvTranspose2d> upsamplings_;
  torch::nn::Conv2d head_{nullptr};
  StageMetrics metrics_;
  ClassWeights class_weights_;
};

}  // namespace fulgur
