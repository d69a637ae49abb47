#include "fulgur/models/cnn_classifier.h"

#include "fulgur/core/options/checked_options.h"
#include "fulgur/core/text/text.h"
#include "option_bounds.h"
#include "parts/images.h"

namespace fulgur {
namespace {

// Channels last halves the time of a step on the CPU. With one channel both layouts look alike to `contiguous`, which
// then keeps the strides; they must be set explicitly for the convolution to follow.
Tensor channels_last(const Tensor& images) {
  if (images.size(1) != 1) return images.contiguous(at::MemoryFormat::ChannelsLast);
  const int64_t height = images.size(2), width = images.size(3);
  return images.contiguous().as_strided(images.sizes(), {height * width, 1, width, 1});
}

}  // namespace

void CnnClassifier::Options::fields(Fields& f) {
  f(in_channels, "in_channels", "Number of channels of an image.").range(1, detail::kMostWidth);
  f(height, "height", "Height of an image in pixels.").range(1, detail::kMostWidth);
  f(width, "width", "Width of an image in pixels.").range(1, detail::kMostWidth);
  f(num_classes, "num_classes", "Number of classes.").range(2, detail::kMostWidth);
  f(channels, "channels", "Number of channels of each convolution; each is followed by 2x2 pooling.")
      .range(1, detail::kMostWidth)
      .min_items(1);
  f(hidden, "hidden", "Width of the fully connected layer before the output; 0: none.").range(0, detail::kMostWidth);
  f(dropout, "dropout", "Dropout probability in training, in the fully connected part.").at_least(0).less_than(1);
  f(metrics, "metrics", kMetricsDoc);
  augmentation_fields(f, label_smoothing, mixup_alpha, &cutmix_alpha);
  ClassWeights::field(f, class_weights);
  f(sample_predictions, "sample_predictions", kSamplesDoc).range(0, detail::kMostSamples);
}

CnnClassifier::CnnClassifier(const Options& options)
    : options_(detail::checked_options(options, "models.CnnClassifier")) {
  int64_t channels = options.in_channels, height = options.height, width = options.width;
  for (size_t i = 0; i < options.channels.size(); ++i) {
    height /= 2;
    width /= 2;
    if (height < 1 || width < 1)
      throw ConfigError(cat("[models.CnnClassifier] ", options.channels.size(), " convolutions halve an image of ",
                            options.height, "x", options.width, " to nothing. Give fewer channels, or larger images."));
    const auto how = torch::nn::Conv2dOptions(channels, options.channels[i], 3).padding(1).bias(false);
    convolutions_.push_back(register_module(cat("conv", i), torch::nn::Conv2d(how)));
    norms_.push_back(register_module(cat("norm", i), nn::BatchNorm2d(options.channels[i])));
    channels = options.channels[i];
  }
  std::vector<int64_t> widths = {channels * height * width};
  if (options.hidden > 0) widths.push_back(options.hidden);
  widths.push_back(options.num_classes);
  head_ = register_module("head", std::make_shared<DenseStack>(widths, options.dropout));
  use_metrics(options.metrics, options.num_classes);
  use_sample_predictions(options.sample_predictions);
  use_class_weights(options.class_weights, options.num_classes);
  use_augmentation({.label_smoothing = options.label_smoothing,
                    .mixup_alpha = options.mixup_alpha,
                    .cutmix_alpha = options.cutmix_alpha});
}

Tensor CnnClassifier::forward(const Tensor& input) {
  if (input.dim() != 4 || input.size(1) != options_.in_channels || input.size(2) != options_.height ||
      input.size(3) != options_.width)
    throw ConfigError(cat("[models.CnnClassifier] images must be [N, ", options_.in_channels, ", ", options_.height,
                          ", ", options_.width, "]; got ", shape_text(input.sizes()),
                          ". Set in_channels, height and width of model.init_args to match the data."));
  detail::check_floating(input, "CnnClassifier");
  Tensor x = input.is_cpu() ? channels_last(input) : input;
  for (size_t i = 0; i < convolutions_.size(); ++i) x = norms_[i]->forward_max_pool_relu(convolutions_[i]->forward(x));
  return head_->forward(x.flatten(1));
}

[[maybe_unused]] static const bool registered_cnn_classifier = Registry<LightningModule>::add<CnnClassifier>(
    "CnnClassifier", "A small convolutional classifier: convolution, batch norm, pooling, ReLU.");

}  // namespace fulgur
