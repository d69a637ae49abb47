#pragma once

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "fulgur/core/contracts/module.h"
#include "fulgur/models/dense_stack.h"

namespace fulgur {

/// What a decoder's outputs are: means of a normal distribution with variance 1, or logits of pixels between 0 and 1.
enum class PixelLikelihood { gaussian, bernoulli };
constexpr auto enum_names(PixelLikelihood) {
  return std::to_array<EnumName<PixelLikelihood>>(
      {{PixelLikelihood::gaussian, "gaussian"}, {PixelLikelihood::bernoulli, "bernoulli"}});
}

/// A variational autoencoder (Kingma and Welling 2014, arXiv:1312.6114) of fully connected layers: `encoder` gives mean
/// and log-variance of a normal distribution of codes, `decoder` maps a code drawn from it to the input. The loss is
/// the negative evidence lower bound of a sample in nats, averaged over the batch: the reconstruction's negative
/// log-likelihood, without the constant of the normal distribution, plus `beta` times the Kullback-Leibler divergence
/// from the standard normal (beta-VAE, Higgins et al. 2017). Codes are drawn in evaluation too.
///
/// Reads `batch[0]`, floating-point; with `bernoulli`, values are between 0 and 1. Logs `train_loss`, `val_loss`,
/// `test_loss`, and their parts, `val_reconstruction` and `val_kl`. Prediction returns `reconstruction` of the mean
/// code, in the input's shape, and `code` and `code_deviation` (N, latent_size). On request, each validation logs
/// `val_samples`, decoded from codes of the standard normal, and `val_reconstructions`, inputs and reconstructions in
/// turn, if the inputs are images.
class FULGUR_API VariationalAutoencoder : public LightningModule {
 public:
  struct FULGUR_API Options {
    int64_t in_features = 784;
    std::vector<int64_t> hidden = {512, 256};
    int64_t latent_size = 20;
    PixelLikelihood likelihood = PixelLikelihood::gaussian;
    double beta = 1;
    int64_t sample_pictures = 0;
    void fields(Fields& f);
  };
  explicit VariationalAutoencoder(const Options& options);

  /// The distribution of codes of inputs (N, …): mean and log-variance, each (N, latent_size). Throws a ConfigError for
  /// samples that do not have in_features values.
  std::pair<Tensor, Tensor> encode(const Tensor& input);
  /// Maps codes (N, latent_size) to means or probabilities of the inputs' values (N, in_features).
  Tensor decode(const Tensor& code);

  StepOutput training_step(const Batch& batch, int64_t batch_idx) override;
  Outputs validation_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) override;
  void on_validation_batch_end(const Outputs& outputs, const Batch& batch, int64_t batch_idx,
                               int64_t loader_idx) override;
  Outputs test_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) override;
  Outputs predict_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) override;

 private:
  /// Means over the batch.
  struct Bound {
    Tensor reconstruction, kl;
  };
  Bound bound_of(const Tensor& input);
  Tensor loss_of(const Bound& bound) const;
  void evaluate(const Batch& batch, const char* stage);
  bool logs_samples(int64_t batch_idx, int64_t loader_idx) const {
    return options_.sample_pictures > 0 && batch_idx == 0 && loader_idx == 0;
  }

  Options options_;
  std::shared_ptr<DenseStack> encoder_, decoder_;
};

}  // namespace fulgur
