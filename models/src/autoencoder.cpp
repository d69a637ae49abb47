#include "fulgur/models/autoencoder.h"

#include <ATen/ops/mse_loss.h>

#include "fulgur/core/options/checked_options.h"
#include "option_bounds.h"

namespace fulgur {

void Autoencoder::Options::fields(Fields& f) {
  f(in_features, "in_features", "Number of values in a sample.").range(1, detail::kMostWidth);
  f(hidden, "hidden", "Widths of the encoder's hidden layers; the decoder has them in reverse.")
      .range(1, detail::kMostWidth);
  f(code_size, "code_size", "Number of values in the code.").range(1, detail::kMostWidth);
}

Autoencoder::Autoencoder(const Options& options) : options_(detail::checked_options(options, "models.Autoencoder")) {
  std::vector<int64_t> widths = {options.in_features};
  widths.insert(widths.end(), options.hidden.begin(), options.hidden.end());
  widths.push_back(options.code_size);
  encoder_ = nn::register_placed<DenseStack>(*this, "encoder", widths);
  decoder_ = nn::register_placed<DenseStack>(*this, "decoder", std::vector<int64_t>(widths.rbegin(), widths.rend()));
}

Tensor Autoencoder::encode(const Tensor& input) {
  return encoder_(flatten_samples(input, options_.in_features, "Autoencoder", "in_features"));
}

Tensor Autoencoder::decode(const Tensor& code) { return decoder_(code); }

Tensor Autoencoder::loss_of(const Batch& batch) {
  const Tensor output = decode(encode(batch[0]));
  // The decoder may be on another device than the batch.
  return at::mse_loss(output, batch[0].flatten(1).to(output.device(), /*non_blocking=*/!output.is_cpu()));
}

StepOutput Autoencoder::training_step(const Batch& batch, int64_t) {
  Tensor loss = loss_of(batch);
  log("train_loss", loss, {.prog_bar = true});
  return loss;
}

Outputs Autoencoder::validation_step(const Batch& batch, int64_t, int64_t) {
  log("val_loss", loss_of(batch), {.prog_bar = true});
  return {};
}

Outputs Autoencoder::test_step(const Batch& batch, int64_t, int64_t) {
  log("test_loss", loss_of(batch), {.prog_bar = true});
  return {};
}

Outputs Autoencoder::predict_step(const Batch& batch, int64_t, int64_t) {
  const Tensor code = encode(batch[0]);
  return {{"reconstruction", decode(code).view(batch[0].sizes())}, {"code", code}};
}

[[maybe_unused]] static const bool registered_autoencoder = Registry<LightningModule>::add<Autoencoder>(
    "Autoencoder", "Reconstructs its input from a short code; encoder and decoder can be placed on different devices.");

}  // namespace fulgur
