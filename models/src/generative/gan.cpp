#include "fulgur/models/gan.h"

#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>
#include <torch/nn/modules/conv.h>

#include "fulgur/core/options/checked_options.h"
#include "fulgur/core/text/text.h"
#include "fulgur/nn/batch_norm.h"
#include "option_bounds.h"
#include "parts/images.h"
#include "sample_pictures.h"

namespace fulgur {
namespace {

constexpr double kMostGanDepth = 10;

Tensor loss_as(const Tensor& logits, bool real) {
  return at::binary_cross_entropy_with_logits(logits, real ? at::ones_like(logits) : at::zeros_like(logits));
}

Tensor mean_probability(const Tensor& logits) { return logits.detach().sigmoid().mean(); }

}  // namespace

/// The layers have the places in `main` that they have in PyTorch's DCGAN example.
class Gan::Generator : public torch::nn::Module {
 public:
  explicit Generator(const Options& options) {
    const auto main = register_module("main", std::make_shared<torch::nn::Module>());
    int64_t width = options.channels << (options.depth - 1), place = 0;
    const auto add = [&](int64_t out, const torch::nn::ConvTranspose2dOptions& how, bool normalised) {
      convolutions_.push_back(main->register_module(std::to_string(place), torch::nn::ConvTranspose2d(how)));
      if (normalised) norms_.push_back(main->register_module(std::to_string(place + 1), nn::BatchNorm2d(out)));
      place += 3;
    };
    using Layer = torch::nn::ConvTranspose2dOptions;
    add(width,
        Layer(options.latent_size, width, {options.height >> options.depth, options.width >> options.depth})
            .bias(false),
        true);
    for (int64_t i = 1; i < options.depth; ++i, width /= 2)
      add(width / 2, Layer(width, width / 2, 4).stride(2).padding(1).bias(false), true);
    add(options.in_channels, Layer(width, options.in_channels, 4).stride(2).padding(1).bias(false), false);
  }

  Tensor forward(const Tensor& codes) {
    Tensor x = codes.unsqueeze(2).unsqueeze(3);
    for (size_t i = 0; i < norms_.size(); ++i) x = norms_[i]->forward(convolutions_[i]->forward(x)).relu_();
    return convolutions_.back()->forward(x).tanh();
  }

 private:
  std::vector<torch::nn::ConvTranspose2d> convolutions_;
  std::vector<nn::BatchNorm2d> norms_;  // of all but the last
};

class Gan::Discriminator : public torch::nn::Module {
 public:
  explicit Discriminator(const Options& options) {
    const auto main = register_module("main", std::make_shared<torch::nn::Module>());
    int64_t in = options.in_channels, width = options.channels, place = 0;
    for (int64_t i = 0; i < options.depth; ++i, in = width, width *= 2) {
      const auto how = torch::nn::Conv2dOptions(in, width, 4).stride(2).padding(1).bias(false);
      convolutions_.push_back(main->register_module(std::to_string(place), torch::nn::Conv2d(how)));
      if (i > 0) norms_.push_back(main->register_module(std::to_string(place + 1), nn::BatchNorm2d(width)));
      place += i == 0 ? 2 : 3;
    }
    const auto last =
        torch::nn::Conv2dOptions(in, 1, {options.height >> options.depth, options.width >> options.depth}).bias(false);
    convolutions_.push_back(main->register_module(std::to_string(place), torch::nn::Conv2d(last)));
  }

  Tensor forward(const Tensor& images) {
    Tensor x = images;
    for (size_t i = 0; i + 1 < convolutions_.size(); ++i) {
      x = convolutions_[i]->forward(x);
      if (i > 0) x = norms_[i - 1]->forward(x);
      x = at::leaky_relu(x, 0.2);
    }
    return convolutions_.back()->forward(x).flatten();
  }

 private:
  std::vector<torch::nn::Conv2d> convolutions_;
  std::vector<nn::BatchNorm2d> norms_;  // of all but the first and the last
};

Spec<Optimizer> Gan::Options::paper_optimizer() {
  Spec<Optimizer> spec;
  Problems problems;
  const ConfigNode options =
      ConfigNode::map({{"lr", ConfigNode::number(2e-4)},
                       {"betas", ConfigNode::list({ConfigNode::number(0.5), ConfigNode::number(0.999)})}});
  spec.read(ConfigNode::map({{"class_path", ConfigNode::string("Adam")}, {"init_args", options}}), problems,
            "optimizer");
  problems.throw_if_any();
  return spec;
}

void Gan::Options::fields(Fields& f) {
  f(in_channels, "in_channels", "Number of channels of an image.").range(1, detail::kMostChannels);
  f(height, "height", "Height of an image in pixels; a multiple of 2^depth.").range(1, detail::kMostKernel);
  f(width, "width", "Width of an image in pixels; a multiple of 2^depth.").range(1, detail::kMostKernel);
  f(depth, "depth", "Number of convolutions of stride 2 in each network.").range(1, kMostGanDepth);
  f(latent_size, "latent_size", "Number of values in a code.").range(1, detail::kMostChannels);
  f(channels, "channels", "Channels of the largest maps; each convolution of stride 2 doubles or halves them.")
      .range(1, detail::kMostChannels / 1000);
  f(low, "low", "Smallest value of a pixel in the data.");
  f(high, "high", "Largest value of a pixel in the data.");
  f(generator_optimizer, "generator_optimizer", "Optimizer of the generator.");
  f(discriminator_optimizer, "discriminator_optimizer", "Optimizer of the discriminator.");
  f(sample_pictures, "sample_pictures", "Number of generated pictures that each validation logs; 0: none.")
      .range(0, detail::kMostSamples);
}

Gan::Gan(const Options& options) : options_(detail::checked_options(options, "models.Gan")) {
  const int64_t unit = int64_t{1} << options.depth;
  if (options.height % unit != 0 || options.width % unit != 0)
    throw ConfigError(cat("[models.Gan] height and width must be multiples of 2^depth = ", unit, "; got ",
                          options.height, " and ", options.width,
                          ". Choose another depth (2 for 28 x 28, 3 for 32 x 32, 4 for 64 x 64)."));
  if (!(options.low < options.high))
    throw ConfigError(cat("[models.Gan] low must be smaller than high; got ", options.low, " and ", options.high, "."));
  generator_ = register_module("generator", std::make_shared<Generator>(options));
  discriminator_ = register_module("discriminator", std::make_shared<Discriminator>(options));
  initialize();
  if (options.sample_pictures > 0)
    shown_codes_ = register_buffer("shown_codes", at::randn({options.sample_pictures, options.latent_size}));
}

Gan::~Gan() = default;

void Gan::initialize() {
  const at::NoGradGuard no_grad;
  for (const auto& [name, value] : unique_parameters(*this)) {
    if (value.dim() == 4)
      value.normal_(0, 0.02);
    else if (name.ends_with("weight"))
      value.normal_(1, 0.02);
  }
}

Tensor Gan::draw_codes(int64_t count) const {
  return at::randn({count, options_.latent_size}, generator_->parameters().front().options().requires_grad(false));
}

Tensor Gan::generate(const Tensor& codes) {
  if (codes.dim() != 2 || codes.size(1) != options_.latent_size)
    throw ConfigError(cat("[models.Gan] codes must be [N, latent_size = ", options_.latent_size, "]; got ",
                          shape_text(codes.sizes()), "."));
  const double half = (options_.high - options_.low) / 2, middle = (options_.high + options_.low) / 2;
  const Tensor images = generator_->forward(codes);
  return half == 1 && middle == 0 ? images : images * half + middle;
}

Tensor Gan::discriminate(const Tensor& images) {
  detail::check_images(images, options_.in_channels, 1, "Gan");
  if (images.size(2) != options_.height || images.size(3) != options_.width)
    throw ConfigError(cat("[models.Gan] images must be ", options_.height, " x ", options_.width, " pixels; got ",
                          images.size(2), " x ", images.size(3),
                          ". Set height and width of model.init_args to match the data."));
  const double half = (options_.high - options_.low) / 2, middle = (options_.high + options_.low) / 2;
  return discriminator_->forward(half == 1 && middle == 0 ? images : (images - middle) / half);
}

OptimizerPlan Gan::configure_optimizers() {
  const auto optimizer_of = [this](const Spec<Optimizer>& spec, std::string_view part) {
    auto optimizer = spec.create();
    optimizer->attach(parameter_groups(*this, part));
    return optimizer;
  };
  return OptimizerPlan::several({{optimizer_of(options_.generator_optimizer, "generator."), {}},
                                 {optimizer_of(options_.discriminator_optimizer, "discriminator."), {}}});
}

StepOutput Gan::training_step(const Batch& batch, int64_t) {
  const auto [for_generator, for_discriminator] = optimizers<2>();
  const Tensor real_logits = discriminate(batch[0]);
  const Tensor images = generate(draw_codes(batch[0].size(0)));
  const Tensor fake_logits = discriminate(images.detach());
  const Tensor d_loss = loss_as(real_logits, true) + loss_as(fake_logits, false);
  manual_backward(d_loss, for_discriminator);
  for_discriminator.step();
  for_discriminator.zero_grad();

  const Tensor g_loss = loss_as(discriminate(images), true);
  manual_backward(g_loss, for_generator);
  for_generator.step();
  for_generator.zero_grad();

  log("train_d_loss", d_loss.detach(), {.prog_bar = true});
  log("train_g_loss", g_loss.detach(), {.prog_bar = true});
  log("train_d_real", mean_probability(real_logits));
  log("train_d_fake", mean_probability(fake_logits));
  return {};
}

void Gan::evaluate(const Batch& batch, const char* stage) {
  const Tensor real = discriminate(batch[0]), fake = discriminate(generate(draw_codes(batch[0].size(0))));
  log(cat(stage, "_d_loss"), loss_as(real, true) + loss_as(fake, false), {.prog_bar = true});
  log(cat(stage, "_g_loss"), loss_as(fake, true), {.prog_bar = true});
  log(cat(stage, "_d_real"), mean_probability(real));
  log(cat(stage, "_d_fake"), mean_probability(fake));
}

Outputs Gan::validation_step(const Batch& batch, int64_t, int64_t) {
  evaluate(batch, "val");
  return {};
}

// In eval mode, so that the running statistics stay equal on all ranks.
void Gan::on_validation_epoch_end() {
  if (!shown_codes_.defined() || run().sanity_checking() || !run().is_global_zero()) return;
  if (const auto picture = detail::picture_of_samples("val_samples", generate(shown_codes_).detach()))
    log_media(*picture);
}

Outputs Gan::test_step(const Batch& batch, int64_t, int64_t) {
  evaluate(batch, "test");
  return {};
}

Outputs Gan::predict_step(const Batch& batch, int64_t, int64_t) {
  const Tensor codes = draw_codes(batch[0].size(0));
  return {{"image", generate(codes)}, {"code", codes}};
}

[[maybe_unused]] static const bool registered_gan = Registry<LightningModule>::add<Gan>(
    "Gan", "A DCGAN: generator and discriminator with an optimizer each, and pictures of the same codes.");

}  // namespace fulgur
