#pragma once

#include <torch/nn/modules/conv.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/models/classifier.h"
#include "fulgur/nn/batch_norm.h"
#include "fulgur/nn/linear.h"

namespace fulgur {

/// How a ResNet's shortcut passes a block that changes the shape (He et al. 2016): `A` takes every second pixel and
/// adds channels of zeros, without parameters; `B` is a 1x1 convolution with batch norm.
enum class ResNetShortcut { automatic, A, B };
constexpr auto enum_names(ResNetShortcut) {
  return std::to_array<EnumName<ResNetShortcut>>(
      {{ResNetShortcut::automatic, "auto"}, {ResNetShortcut::A, "A"}, {ResNetShortcut::B, "B"}});
}

/// A residual network (He et al. 2016, arXiv:1512.03385) with torchvision's parameter names (`conv1`, `bn1`,
/// `layer1.0.conv1`, `layer2.0.downsample.0`, …, `fc`). Depths 18, 34 and 50 are those for ImageNet, with torchvision's
/// architecture: the stride of a bottleneck is that of its 3x3 convolution. Depths 20, 32, 44, 56 and 110 are those for
/// CIFAR: a 3x3 convolution, and three stages of 16, 32 and 64 channels. Images (N, in_channels, H, W) of any size from
/// 1 pixel on. Initialized as torchvision does: convolutions normal with He's `fan_out`, batch norms 1 and 0.
class FULGUR_API ResNet : public Classifier {
 public:
  struct FULGUR_API Options {
    int64_t depth = 18;
    int64_t in_channels = 3;
    int64_t num_classes = 10;
    int64_t width = 0;  ///< channels of the first stage; 0: 64, or 16 for CIFAR's depths
    ResNetShortcut shortcut = ResNetShortcut::automatic;  ///< auto: B, or A for CIFAR's depths
    bool zero_init_residual = false;
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

  /// Throws a ConfigError for an invalid activation_checkpointing.
  explicit ResNet(const Options& options);
  ~ResNet() override;
  /// Throws a ConfigError for images of another shape or dtype.
  Tensor forward(const Tensor& input) override;

 private:
  void initialize();

  Options options_;
  bool for_cifar_;
  int64_t checkpoint_every_;  ///< 0 for none
  torch::nn::Conv2d conv1_{nullptr};
  nn::BatchNorm2d bn1_{nullptr};
  std::vector<std::shared_ptr<Block>> blocks_;
  nn::Linear fc_{nullptr};
};

}  // namespace fulgur
