#include "fulgur/models/resnet.h"

#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/max_pool2d.h>
#include <torch/nn/modules/container/modulelist.h>

#include "fulgur/core/options/checked_options.h"
#include "fulgur/core/text/text.h"
#include "fulgur/nn/checkpoint.h"
#include "option_bounds.h"
#include "parts/checkpoint_interval.h"
#include "parts/images.h"
#include "parts/initial_weights.h"

namespace fulgur {
namespace {

bool is_for_cifar(int64_t depth) { return depth % 6 == 2 && depth != 50; }

// Blocks of each stage.
std::vector<int64_t> resnet_stages(int64_t depth) {
  if (depth == 18) return {2, 2, 2, 2};
  if (depth == 34 || depth == 50) return {3, 4, 6, 3};
  return std::vector<int64_t>(3, (depth - 2) / 6);
}

torch::nn::Conv2d resnet_convolution(int64_t in, int64_t out, int64_t kernel, int64_t stride) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

}  // namespace

/// Two 3x3 convolutions, or the bottleneck 1x1, 3x3, 1x1 with four times the channels at its end.
class ResNet::Block : public torch::nn::Module {
 public:
  struct Shape {
    int64_t in, width, stride;
    bool is_bottleneck;
    ResNetShortcut shortcut;
    int64_t out() const { return is_bottleneck ? 4 * width : width; }
  };

  explicit Block(const Shape& shape) : shape_(shape) {
    if (shape.is_bottleneck) {
      add(shape.in, shape.width, 1, 1);
      add(shape.width, shape.width, 3, shape.stride);
      add(shape.width, shape.out(), 1, 1);
    } else {
      add(shape.in, shape.width, 3, shape.stride);
      add(shape.width, shape.width, 3, 1);
    }
    if (!changes_shape() || shape.shortcut == ResNetShortcut::A) return;
    const auto downsample = register_module("downsample", std::make_shared<torch::nn::Module>());
    projection_ = downsample->register_module("0", resnet_convolution(shape.in, shape.out(), 1, shape.stride));
    projection_norm_ = downsample->register_module("1", nn::BatchNorm2d(shape.out()));
  }

  Tensor forward(const Tensor& input) {
    Tensor x = input;
    for (size_t i = 0; i < convolutions_.size(); ++i) {
      x = norms_[i]->forward(convolutions_[i]->forward(x));
      if (i + 1 < convolutions_.size()) x = x.relu_();
    }
    return (x + shortcut_of(input)).relu_();
  }

  nn::BatchNorm2d& last_norm() { return norms_.back(); }

 private:
  bool changes_shape() const { return shape_.stride != 1 || shape_.in != shape_.out(); }

  void add(int64_t in, int64_t out, int64_t kernel, int64_t stride) {
    const size_t number = convolutions_.size() + 1;
    convolutions_.push_back(register_module(cat("conv", number), resnet_convolution(in, out, kernel, stride)));
    norms_.push_back(register_module(cat("bn", number), nn::BatchNorm2d(out)));
  }

  Tensor shortcut_of(const Tensor& input) {
    if (!changes_shape()) return input;
    if (!projection_.is_empty()) return projection_norm_->forward(projection_->forward(input));
    Tensor x = input;
    if (shape_.stride != 1) x = x.slice(2, 0, std::nullopt, shape_.stride).slice(3, 0, std::nullopt, shape_.stride);
    const int64_t more = shape_.out() - shape_.in;
    return at::constant_pad_nd(x, {0, 0, 0, 0, more / 2, more - more / 2});
  }

  Shape shape_;
  std::vector<torch::nn::Conv2d> convolutions_;
  std::vector<nn::BatchNorm2d> norms_;
  torch::nn::Conv2d projection_{nullptr};
  nn::BatchNorm2d projection_norm_{nullptr};
};

void ResNet::Options::fields(Fields& f) {
  f(depth, "depth", "Number of layers: 18, 34, 50 as for ImageNet; 20, 32, 44, 56, 110 as for CIFAR.")
      .one_of({"18", "20", "32", "34", "44", "50", "56", "110"})
      .at_least(18);
  f(in_channels, "in_channels", "Number of channels of an image.").range(1, detail::kMostWidth);
  f(num_classes, "num_classes", "Number of classes.").range(2, detail::kMostWidth);
  f(width, "width", "Channels of the first stage; 0: 64, or 16 for CIFAR's depths.").range(0, detail::kMostChannels);
  f(shortcut, "shortcut",
    "Shortcut of a block that changes the shape: A (zeros, no parameters) or B (1x1 convolution); auto: B, or A for "
    "CIFAR's depths.");
  f(zero_init_residual, "zero_init_residual",
    "The last batch norm of each block begins with weight 0, so that each block begins as its shortcut.");
  f(activation_checkpointing, "activation_checkpointing", detail::kCheckpointingDoc);
  f(metrics, "metrics", kMetricsDoc);
  augmentation_fields(f, label_smoothing, mixup_alpha, &cutmix_alpha);
  ClassWeights::field(f, class_weights);
  f(sample_predictions, "sample_predictions", kSamplesDoc).range(0, detail::kMostSamples);
}

ResNet::ResNet(const Options& options)
    : options_(detail::checked_options(options, "models.ResNet")),
      for_cifar_(is_for_cifar(options.depth)),
      checkpoint_every_(detail::checkpoint_interval(options.activation_checkpointing, "ResNet")) {
  int64_t width = options.width > 0 ? options.width : for_cifar_ ? 16 : 64;
  const ResNetShortcut shortcut = options.shortcut != ResNetShortcut::automatic ? options.shortcut
                                  : for_cifar_                                  ? ResNetShortcut::A
                                                                                : ResNetShortcut::B;
  conv1_ = register_module("conv1", for_cifar_ ? resnet_convolution(options.in_channels, width, 3, 1)
                                               : resnet_convolution(options.in_channels, width, 7, 2));
  bn1_ = register_module("bn1", nn::BatchNorm2d(width));
  int64_t channels = width, stage = 0;
  for (const int64_t count : resnet_stages(options.depth)) {
    const auto layer = register_module(cat("layer", ++stage), std::make_shared<torch::nn::ModuleListImpl>());
    for (int64_t i = 0; i < count; ++i) {
      const Block::Shape shape{.in = channels,
                               .width = width,
                               .stride = stage > 1 && i == 0 ? 2 : 1,
                               .is_bottleneck = options.depth == 50,
                               .shortcut = shortcut};
      blocks_.push_back(std::make_shared<Block>(shape));
      layer->push_back(blocks_.back());
      channels = shape.out();
    }
    width *= 2;
  }
  fc_ = register_module("fc", nn::Linear(channels, options.num_classes));
  initialize();
  use_metrics(options.metrics, options.num_classes);
  use_sample_predictions(options.sample_predictions);
  use_class_weights(options.class_weights, options.num_classes);
  use_augmentation({.label_smoothing = options.label_smoothing,
                    .mixup_alpha = options.mixup_alpha,
                    .cutmix_alpha = options.cutmix_alpha});
}

ResNet::~ResNet() = default;

void ResNet::initialize() {
  for (const auto& [name, value] : unique_parameters(*this))
    if (value.dim() == 4) detail::he_normal_of_outputs(value);
  if (!options_.zero_init_residual) return;
  const at::NoGradGuard no_grad;
  for (const auto& block : blocks_) block->last_norm()->weight.zero_();
}

Tensor ResNet::forward(const Tensor& input) {
  detail::check_images(input, options_.in_channels, 1, "ResNet");
  Tensor x = bn1_->forward(conv1_->forward(input)).relu_();
  if (!for_cifar_) x = at::max_pool2d(x, 3, 2, 1);
  for (size_t i = 0; i < blocks_.size(); ++i)
    x = detail::is_checkpointed(i, checkpoint_every_) ? nn::checkpoint(blocks_[i], x) : blocks_[i]->forward(x);
  return fc_->forward(at::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
}

[[maybe_unused]] static const bool registered_resnet = Registry<LightningModule>::add<ResNet>(
    "ResNet", "A residual network: ImageNet's 18, 34, 50 with torchvision's names, or CIFAR's 20, 32, 44, 56, 110.");

}  // namespace fulgur
