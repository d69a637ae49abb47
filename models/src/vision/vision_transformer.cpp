#include "fulgur/models/vision_transformer.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "fulgur/core/options/checked_options.h"
#include "fulgur/core/text/text.h"
#include "fulgur/nn/checkpoint.h"
#include "option_bounds.h"
#include "parts/checkpoint_interval.h"
#include "parts/images.h"
#include "parts/initial_weights.h"

namespace fulgur {
namespace {

std::shared_ptr<nn::LayerNormImpl> vit_norm(const VisionTransformer::Options& options) {
  return std::make_shared<nn::LayerNormImpl>(nn::LayerNormOptions({options.hidden_dim}).eps(options.layer_norm_eps));
}

Tensor vit_drop(const Tensor& x, double share, bool training) {
  return share > 0 && training ? at::dropout(x, share, true) : x;
}

// torch.nn.MultiheadAttention of a sequence with itself.
class VitAttention : public torch::nn::Module {
 public:
  explicit VitAttention(const VisionTransformer::Options& options)
      : heads_(options.num_heads), dropout_(options.attention_dropout) {
    const int64_t width = options.hidden_dim;
    in_weight_ = register_parameter("in_proj_weight", at::empty({3 * width, width}));
    in_bias_ = register_parameter("in_proj_bias", at::zeros({3 * width}));
    out_proj_ = register_module("out_proj", nn::Linear(width, width));
    detail::xavier_uniform(in_weight_);
    const at::NoGradGuard no_grad;
    out_proj_->bias.zero_();
  }

  Tensor forward(const Tensor& input) {
    const int64_t samples = input.size(0), length = input.size(1), width = input.size(2);
    const auto parts = at::linear(input, in_weight_, in_bias_).chunk(3, /*dim=*/2);
    const auto heads = [&](const Tensor& x) {
      return x.reshape({samples, length, heads_, width / heads_}).transpose(1, 2);
    };
    const Tensor mixed = at::scaled_dot_product_attention(heads(parts[0]), heads(parts[1]), heads(parts[2]), {},
                                                          is_training() ? dropout_ : 0.0);
    return out_proj_->forward(mixed.transpose(1, 2).reshape({samples, length, width}));
  }

 private:
  int64_t heads_;
  double dropout_;
  Tensor in_weight_, in_bias_;
  nn::Linear out_proj_{nullptr};
};

}  // namespace

/// x + attention(norm(x)), then x + mlp(norm(x)).
class VisionTransformer::Layer : public torch::nn::Module {
 public:
  explicit Layer(const Options& options) : dropout_(options.dropout) {
    ln_1_ = register_module("ln_1", vit_norm(options));
    attention_ = register_module("self_attention", std::make_shared<VitAttention>(options));
    ln_2_ = register_module("ln_2", vit_norm(options));
    const auto mlp = register_module("mlp", std::make_shared<torch::nn::Module>());
    widen_ = mlp->register_module("0", nn::Linear(options.hidden_dim, options.mlp_dim));
    narrow_ = mlp->register_module("3", nn::Linear(options.mlp_dim, options.hidden_dim));
    const at::NoGradGuard no_grad;
    for (const nn::Linear& linear : {widen_, narrow_}) {
      detail::xavier_uniform(linear->weight);
      linear->bias.normal_(0, 1e-6);
    }
  }

  Tensor forward(const Tensor& input) {
    const bool training = is_training();
    const Tensor x = input + vit_drop(attention_->forward(ln_1_->forward(input)), dropout_, training);
    const Tensor wide = vit_drop(at::gelu(widen_->forward(ln_2_->forward(x))), dropout_, training);
    return x + vit_drop(narrow_->forward(wide), dropout_, training);
  }

 private:
  double dropout_;
  std::shared_ptr<nn::LayerNormImpl> ln_1_, ln_2_;
  std::shared_ptr<VitAttention> attention_;
  nn::Linear widen_{nullptr}, narrow_{nullptr};
};

void VisionTransformer::Options::fields(Fields& f) {
  f(image_size, "image_size", "Height and width of an image in pixels.").range(1, detail::kMostChannels);
  f(patch_size, "patch_size", "Height and width of a patch in pixels; must divide image_size.")
      .range(1, detail::kMostKernel);
  f(in_channels, "in_channels", "Number of channels of an image.").range(1, detail::kMostChannels);
  f(num_layers, "num_layers", "Number of encoder layers.").range(1, detail::kMostLayers);
  f(num_heads, "num_heads", "Number of attention heads; must divide hidden_dim.").range(1, detail::kMostLayers);
  f(hidden_dim, "hidden_dim", "Width of the encoder.").range(1, detail::kMostChannels);
  f(mlp_dim, "mlp_dim", "Width inside the fully connected part of a layer.").range(1, detail::kMostWidth);
  f(num_classes, "num_classes", "Number of classes.").range(2, detail::kMostWidth);
  f(dropout, "dropout",
    "Dropout probability in training: after the position embedding, the attention, and each fully connected layer.")
      .at_least(0)
      .less_than(1);
  f(attention_dropout, "attention_dropout", "Dropout probability of the attention weights in training.")
      .at_least(0)
      .less_than(1);
  f(layer_norm_eps, "layer_norm_eps", "Added to the variance in norms: 1e-6 in torchvision, 1e-12 in Hugging Face.")
      .greater_than(0);
  f(activation_checkpointing, "activation_checkpointing", detail::kCheckpointingDoc);
  f(metrics, "metrics", kMetricsDoc);
  augmentation_fields(f, label_smoothing, mixup_alpha, &cutmix_alpha);
  ClassWeights::field(f, class_weights);
  f(sample_predictions, "sample_predictions", kSamplesDoc).range(0, detail::kMostSamples);
}

VisionTransformer::VisionTransformer(const Options& options)
    : options_(detail::checked_options(options, "models.VisionTransformer")),
      checkpoint_every_(detail::checkpoint_interval(options.activation_checkpointing, "VisionTransformer")) {
  if (options.image_size % options.patch_size != 0)
    throw ConfigError(cat("[models.VisionTransformer] patch_size must divide image_size; got image_size ",
                          options.image_size, " and patch_size ", options.patch_size, "."));
  if (options.hidden_dim % options.num_heads != 0)
    throw ConfigError(cat("[models.VisionTransformer] num_heads must divide hidden_dim; got hidden_dim ",
                          options.hidden_dim, " and num_heads ", options.num_heads, "."));
  const int64_t width = options.hidden_dim, side = options.image_size / options.patch_size;
  class_token_ = register_parameter("class_token", at::zeros({1, 1, width}));
  const auto patches =
      torch::nn::Conv2dOptions(options.in_channels, width, options.patch_size).stride(options.patch_size);
  conv_proj_ = register_module("conv_proj", torch::nn::Conv2d(patches));
  const auto encoder = register_module("encoder", std::make_shared<torch::nn::Module>());
  pos_embedding_ = encoder->register_parameter("pos_embedding", at::empty({1, side * side + 1, width}));
  const auto layers = encoder->register_module("layers", std::make_shared<torch::nn::Module>());
  for (int64_t i = 0; i < options.num_layers; ++i)
    layers_.push_back(layers->register_module(cat("encoder_layer_", i), std::make_shared<Layer>(options)));
  ln_ = encoder->register_module("ln", vit_norm(options));
  const auto heads = register_module("heads", std::make_shared<torch::nn::Module>());
  head_ = heads->register_module("head", nn::Linear(width, options.num_classes));
  initialize();
  use_metrics(options.metrics, options.num_classes);
  use_sample_predictions(options.sample_predictions);
  use_class_weights(options.class_weights, options.num_classes);
  use_augmentation({.label_smoothing = options.label_smoothing,
                    .mixup_alpha = options.mixup_alpha,
                    .cutmix_alpha = options.cutmix_alpha});
}

VisionTransformer::~VisionTransformer() = default;

void VisionTransformer::initialize() {
  const at::NoGradGuard no_grad;
  const auto fan_in = static_cast<double>(options_.in_channels * options_.patch_size * options_.patch_size);
  detail::trunc_normal(conv_proj_->weight, std::sqrt(1 / fan_in));
  conv_proj_->bias.zero_();
  pos_embedding_.normal_(0, 0.02);
  head_->weight.zero_();
  head_->bias.zero_();
}

Tensor VisionTransformer::forward(const Tensor& input) {
  detail::check_images(input, options_.in_channels, 1, "VisionTransformer");
  if (input.size(2) != options_.image_size || input.size(3) != options_.image_size)
    throw ConfigError(cat("[models.VisionTransformer] images must be ", options_.image_size, " x ", options_.image_size,
                          " pixels; got ", input.size(2), " x ", input.size(3),
                          ". Set image_size of model.init_args to match the data, or resize the images."));
  const Tensor patches = conv_proj_->forward(input).flatten(2).transpose(1, 2);
  const Tensor token = class_token_.to(patches.scalar_type()).expand({input.size(0), -1, -1});
  Tensor x = vit_drop(at::cat({token, patches}, 1) + pos_embedding_, options_.dropout, is_training());
  for (size_t i = 0; i < layers_.size(); ++i)
    x = detail::is_checkpointed(i, checkpoint_every_) ? nn::checkpoint(layers_[i], x) : layers_[i]->forward(x);
  return head_->forward(ln_->forward(x).select(1, 0));
}

[[maybe_unused]] static const bool registered_vision_transformer = Registry<LightningModule>::add<VisionTransformer>(
    "VisionTransformer", "A Vision Transformer with torchvision's names; the default sizes are those of ViT-B/16.");

}  // namespace fulgur
