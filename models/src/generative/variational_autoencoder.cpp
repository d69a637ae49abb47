#include "fulgur/models/variational_autoencoder.h"

#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/stack.h>

#include <algorithm>

#include "fulgur/core/options/checked_options.h"
#include "fulgur/core/text/text.h"
#include "option_bounds.h"
#include "sample_pictures.h"

namespace fulgur {
namespace {

// On the host only: on a device, asking would wait for it.
void check_probabilities(const Tensor& input) {
  if (!input.is_cpu() || input.numel() == 0) return;
  const auto [least, most] = input.aminmax();
  const double low = least.item<double>(), high = most.item<double>();
  if (low >= 0 && high <= 1) return;
  throw DataError(cat("[models.VariationalAutoencoder] likelihood: bernoulli needs values between 0 and 1; got ",
                      format_fixed(low, 3), " to ", format_fixed(high, 3),
                      ". Use likelihood: gaussian, or data that are not standardised."));
}

// Sums over many values need more digits than a half precision has.
Tensor in_full_precision(const Tensor& x) { return x.scalar_type() == at::kDouble ? x : x.to(at::kFloat); }

bool is_image_batch(const Tensor& input) { return input.dim() == 3 || input.dim() == 4; }

}  // namespace

void VariationalAutoencoder::Options::fields(Fields& f) {
  f(in_features, "in_features", "Number of values in a sample.").range(1, detail::kMostWidth);
  f(hidden, "hidden", "Widths of the encoder's hidden layers; the decoder has them in reverse.")
      .range(1, detail::kMostWidth);
  f(latent_size, "latent_size", "Number of values in a code.").range(1, detail::kMostChannels);
  f(likelihood, "likelihood",
    "Distribution of the inputs' values: gaussian with variance 1, or bernoulli for values between 0 and 1.");
  f(beta, "beta", "Weight of the Kullback-Leibler divergence in the loss; 1: the evidence lower bound.").at_least(0);
  f(sample_pictures, "sample_pictures",
    "Number of pictures that each validation decodes from drawn codes and logs, if inputs are images; 0: none.")
      .range(0, detail::kMostSamples);
}

VariationalAutoencoder::VariationalAutoencoder(const Options& options)
    : options_(detail::checked_options(options, "models.VariationalAutoencoder")) {
  std::vector<int64_t> widths = {options.in_features};
  widths.insert(widths.end(), options.hidden.begin(), options.hidden.end());
  std::vector<int64_t> back(widths.rbegin(), widths.rend());
  widths.push_back(2 * options.latent_size);
  back.insert(back.begin(), options.latent_size);
  encoder_ = register_module("encoder", std::make_shared<DenseStack>(widths));
  decoder_ = register_module("decoder", std::make_shared<DenseStack>(back));
}

std::pair<Tensor, Tensor> VariationalAutoencoder::encode(const Tensor& input) {
  const auto parts =
      encoder_->forward(flatten_samples(input, options_.in_features, "VariationalAutoencoder", "in_features"))
          .chunk(2, 1);
  return {parts[0], parts[1]};
}

Tensor VariationalAutoencoder::decode(const Tensor& code) {
  const Tensor output = decoder_->forward(code);
  return options_.likelihood == PixelLikelihood::bernoulli ? output.sigmoid() : output;
}

VariationalAutoencoder::Bound VariationalAutoencoder::bound_of(const Tensor& input) {
  const auto [coded_mean, coded_log_variance] = encode(input);
  const Tensor mean = in_full_precision(coded_mean), log_variance = in_full_precision(coded_log_variance);
  const Tensor code = mean + (0.5 * log_variance).exp() * at::randn_like(mean);
  const Tensor output = in_full_precision(decoder_->forward(code.to(coded_mean.scalar_type())));
  const Tensor wanted = input.flatten(1).to(output.scalar_type());
  const auto samples = static_cast<double>(std::max<int64_t>(input.size(0), 1));
  Bound bound;
  if (options_.likelihood == PixelLikelihood::bernoulli) {
    check_probabilities(input);
    bound.reconstruction = at::binary_cross_entropy_with_logits(output, wanted, {}, {}, at::Reduction::Sum);
  } else {
    bound.reconstruction = 0.5 * at::mse_loss(output, wanted, at::Reduction::Sum);
  }
  bound.reconstruction = bound.reconstruction / samples;
  bound.kl = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum() / samples;
  return bound;
}

Tensor VariationalAutoencoder::loss_of(const Bound& bound) const {
  return bound.reconstruction + options_.beta * bound.kl;
}

StepOutput VariationalAutoencoder::training_step(const Batch& batch, int64_t) {
  const Bound bound = bound_of(batch[0]);
  Tensor loss = loss_of(bound);
  log("train_loss", loss, {.prog_bar = true});
  log("train_reconstruction", bound.reconstruction);
  log("train_kl", bound.kl);
  return loss;
}

void VariationalAutoencoder::evaluate(const Batch& batch, const char* stage) {
  const Bound bound = bound_of(batch[0]);
  log(cat(stage, "_loss"), loss_of(bound), {.prog_bar = true});
  log(cat(stage, "_reconstruction"), bound.reconstruction);
  log(cat(stage, "_kl"), bound.kl);
}

Outputs VariationalAutoencoder::validation_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) {
  evaluate(batch, "val");
  if (!logs_samples(batch_idx, loader_idx) || !is_image_batch(batch[0])) return {};
  const int64_t count = std::min(options_.sample_pictures, batch[0].size(0));
  return {{"reconstruction", decode(encode(batch[0].narrow(0, 0, count)).first)}};
}

void VariationalAutoencoder::on_validation_batch_end(const Outputs& outputs, const Batch& batch, int64_t batch_idx,
                                                     int64_t loader_idx) {
  const Tensor& input = batch[0];
  if (!logs_samples(batch_idx, loader_idx) || !is_image_batch(input) || run().sanity_checking() ||
      !run().is_global_zero())
    return;
  const Tensor codes =
      at::randn({options_.sample_pictures, options_.latent_size}, decoder_->parameters().front().options());
  const auto as_images = [&](const Tensor& values) {
    std::vector<int64_t> shape = input.sizes().vec();
    shape[0] = values.size(0);
    return values.view(shape);
  };
  if (const auto picture = detail::picture_of_samples("val_samples", as_images(decode(codes)))) log_media(*picture);
  const Tensor again = as_images(outputs["reconstruction"]);
  const Tensor both = at::stack({input.narrow(0, 0, again.size(0)).to(again.scalar_type()), again}, 1).flatten(0, 1);
  if (const auto picture = detail::picture_of_samples("val_reconstructions", both)) log_media(*picture);
}

Outputs VariationalAutoencoder::test_step(const Batch& batch, int64_t, int64_t) {
  evaluate(batch, "test");
  return {};
}

Outputs VariationalAutoencoder::predict_step(const Batch& batch, int64_t, int64_t) {
  const auto [mean, log_variance] = encode(batch[0]);
  return {{"reconstruction", decode(mean).view(batch[0].sizes())},
          {"code", mean},
          {"code_deviation", (0.5 * log_variance).exp()}};
}

[[maybe_unused]] static const bool registered_variational_autoencoder =
    Registry<LightningModule>::add<VariationalAutoencoder>(
        "VariationalAutoencoder", "A variational autoencoder: evidence lower bound, and pictures of drawn codes.");

}  // namespace fulgur
