#include "fulgur/models/convnext.h"

#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
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

constexpr double kConvNextEps = 1e-6;
constexpr size_t kMostConvNextStages = 16;

std::shared_ptr<nn::LayerNormImpl> convnext_norm(int64_t channels) {
  return std::make_shared<nn::LayerNormImpl>(nn::LayerNormOptions({channels}).eps(kConvNextEps));
}

// Over the channels of each pixel. In channels-last memory neither permutation copies.
Tensor norm_of_pixels(nn::LayerNormImpl& norm, const Tensor& images) {
  return norm.forward(images.permute({0, 2, 3, 1})).permute({0, 3, 1, 2});
}

}  // namespace

class ConvNeXt::Block : public torch::nn::Module {
 public:
  Block(int64_t channels, double layer_scale, double drop_share) : drop_share_(drop_share) {
    scale_ = register_parameter("layer_scale", at::full({channels, 1, 1}, layer_scale));
    // Places 1, 4 and 6 of torchvision's list have no parameters.
    const auto block = register_module("block", std::make_shared<torch::nn::Module>());
    convolution_ = block->register_module(
        "0", torch::nn::Conv2d(torch::nn::Conv2dOptions(channels, channels, 7).padding(3).groups(channels)));
    norm_ = block->register_module("2", convnext_norm(channels));
    widen_ = block->register_module("3", nn::Linear(channels, 4 * channels));
    narrow_ = block->register_module("5", nn::Linear(4 * channels, channels));
  }

  Tensor forward(const Tensor& input) {
    const Tensor pixels = norm_->forward(convolution_->forward(input).permute({0, 2, 3, 1}));
    const Tensor branch = narrow_->forward(at::gelu(widen_->forward(pixels))).permute({0, 3, 1, 2});
    return input + detail::drop_paths(scale_ * branch, drop_share_, is_training());
  }

 private:
  double drop_share_;
  Tensor scale_;
  torch::nn::Conv2d convolution_{nullptr};
  std::shared_ptr<nn::LayerNormImpl> norm_;
  nn::Linear widen_{nullptr}, narrow_{nullptr};
};

Tensor ConvNeXt::Downsampling::forward(const Tensor& input) const {
  torch::nn::Conv2d conv = convolution;
  return norm_is_first ? conv->forward(norm_of_pixels(*norm, input)) : norm_of_pixels(*norm, conv->forward(input));
}

void ConvNeXt::Options::fields(Fields& f) {
  f(in_channels, "in_channels", "Number of channels of an image.").range(1, detail::kMostChannels);
  f(num_classes, "num_classes", "Number of classes.").range(2, detail::kMostWidth);
  f(depths, "depths", "Number of blocks of each stage.").range(1, detail::kMostLayers).min_items(1);
  f(widths, "widths", "Number of channels of each stage.").range(1, detail::kMostChannels).min_items(1);
  f(stochastic_depth, "stochastic_depth",
    "Probability with which training leaves out the branch of the last block, per sample; 0: never. Earlier blocks "
    "have less, in proportion.")
      .range(0, 1);
  f(layer_scale, "layer_scale", "Initial factor of each residual branch.").greater_than(0);
  f(activation_checkpointing, "activation_checkpointing", detail::kCheckpointingDoc);
  f(metrics, "metrics", kMetricsDoc);
  augmentation_fields(f, label_smoothing, mixup_alpha, &cutmix_alpha);
  ClassWeights::field(f, class_weights);
  f(sample_predictions, "sample_predictions", kSamplesDoc).range(0, detail::kMostSamples);
}

ConvNeXt::ConvNeXt(const Options& options)
    : options_(detail::checked_options(options, "models.ConvNeXt")),
      checkpoint_every_(detail::checkpoint_interval(options.activation_checkpointing, "ConvNeXt")) {
  if (options.depths.size() != options.widths.size() || options.depths.size() > kMostConvNextStages)
    throw ConfigError(cat("[models.ConvNeXt] depths and widths must have one number for each of at most ",
                          kMostConvNextStages, " stages; got ", options.depths.size(), " depths and ",
                          options.widths.size(), " widths."));
  int64_t all_blocks = 0, block = 0;
  for (const int64_t depth : options.depths) all_blocks += depth;
  const auto features = register_module("features", std::make_shared<torch::nn::ModuleListImpl>());
  for (size_t i = 0; i < options.depths.size(); ++i) {
    const bool is_stem = i == 0;
    const int64_t channels = is_stem ? options.in_channels : options.widths[i - 1], width = options.widths[i];
    const int64_t stride = is_stem ? 4 : 2;
    const auto begin = std::make_shared<torch::nn::Module>();
    Downsampling& down = downsamplings_.emplace_back();
    down.norm_is_first = !is_stem;
    down.norm = convnext_norm(is_stem ? width : channels);
    down.convolution = torch::nn::Conv2d(torch::nn::Conv2dOptions(channels, width, stride).stride(stride));
    begin->register_module(is_stem ? "0" : "1", down.convolution);
    begin->register_module(is_stem ? "1" : "0", down.norm);
    features->push_back(begin);
    const auto stage = std::make_shared<torch::nn::ModuleListImpl>();
    auto& blocks = stages_.emplace_back();
    for (int64_t j = 0; j < options.depths[i]; ++j, ++block) {
      const double share =
          all_blocks > 1 ? options.stochastic_depth * static_cast<double>(block) / static_cast<double>(all_blocks - 1)
                         : 0.0;
      blocks.push_back(std::make_shared<Block>(width, options.layer_scale, share));
      stage->push_back(blocks.back());
    }
    features->push_back(stage);
  }
  const auto classifier = register_module("classifier", std::make_shared<torch::nn::Module>());
  norm_ = classifier->register_module("0", convnext_norm(options.widths.back()));
  head_ = classifier->register_module("2", nn::Linear(options.widths.back(), options.num_classes));
  initialize();
  use_metrics(options.metrics, options.num_classes);
  use_sample_predictions(options.sample_predictions);
  use_class_weights(options.class_weights, options.num_classes);
  use_augmentation({.label_smoothing = options.label_smoothing,
                    .mixup_alpha = options.mixup_alpha,
                    .cutmix_alpha = options.cutmix_alpha});
}

ConvNeXt::~ConvNeXt() = default;

void ConvNeXt::initialize() {
  const at::NoGradGuard no_grad;
  for (const auto& [name, value] : unique_parameters(*this)) {
    if (name.ends_with(".weight") && value.dim() > 1)
      detail::trunc_normal(value, 0.02);
    else if (name.ends_with(".bias"))
      value.zero_();
  }
}

Tensor ConvNeXt::forward(const Tensor& input) {
  const int64_t least = int64_t{4} << (stages_.size() - 1);
  detail::check_images(input, options_.in_channels, least, "ConvNeXt");
  Tensor x = input;
  size_t number = 0;
  for (size_t i = 0; i < stages_.size(); ++i) {
    x = downsamplings_[i].forward(x);
    for (const auto& block : stages_[i])
      x = detail::is_checkpointed(number++, checkpoint_every_) ? nn::checkpoint(block, x) : block->forward(x);
  }
  return head_->forward(norm_of_pixels(*norm_, at::adaptive_avg_pool2d(x, {1, 1})).flatten(1));
}

[[maybe_unused]] static const bool registered_convnext = Registry<LightningModule>::add<ConvNeXt>(
    "ConvNeXt", "A ConvNeXt with torchvision's names, layer scale and stochastic depth; the default is ConvNeXt-Tiny.");

}  // namespace fulgur
