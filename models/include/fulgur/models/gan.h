#pragma once

#include <memory>
#include <vector>

#include "fulgur/core/contracts/module.h"
#include "fulgur/core/contracts/registry.h"

namespace fulgur {

/// A generative adversarial network of convolutions (DCGAN, Radford et al. 2016, arXiv:1511.06434), trained with two
/// optimizers: `generator` maps drawn codes to images, `discriminator` tells them from those of the data. Both have
/// `depth` convolutions of stride 2, so that 2^depth must divide height and width; 64 x 64 pixels with a depth of 4 is
/// the paper's network. Initialized as there: weights normal with deviation 0.02, batch norms 1 with that deviation.
///
/// Reads `batch[0]`, floating-point images (N, in_channels, height, width) with values from `low` to `high`, which the
/// generator's are too. A step trains the discriminator on real and generated images, then the generator with the loss
/// that does not saturate (Goodfellow et al. 2014). Logs `train_d_loss`, `train_g_loss`, and `train_d_real`,
/// `train_d_fake`: the mean probabilities of being real; the same of validation and test. Prediction returns an `image`
/// for each sample of the batch, from the `code` (N, latent_size) that is drawn for it. On request, each validation
/// logs `val_samples`: images of the same codes each time.
class FULGUR_API Gan : public LightningModule {
 public:
  struct FULGUR_API Options {
    int64_t in_channels = 1;
    int64_t height = 28;
    int64_t width = 28;
    int64_t depth = 2;
    int64_t latent_size = 100;
    int64_t channels = 64;
    double low = -1;
    double high = 1;
    /// Adam with the paper's learning rate 2e-4 and beta 0.5, each.
    Spec<Optimizer> generator_optimizer = paper_optimizer();
    Spec<Optimizer> discriminator_optimizer = paper_optimizer();
    int64_t sample_pictures = 16;
    void fields(Fields& f);
    static Spec<Optimizer> paper_optimizer();
  };
  /// The two networks; internal.
  class Generator;
  class Discriminator;

  /// Throws a ConfigError if 2^depth does not divide the sizes, or if `low` is not below `high`.
  explicit Gan(const Options& options);
  ~Gan() override;
  /// Maps codes (N, latent_size) to images (N, in_channels, height, width).
  Tensor generate(const Tensor& codes);
  /// Logits of the images being real, (N). Throws a ConfigError for images of another shape or dtype.
  Tensor discriminate(const Tensor& images);

  bool automatic_optimization() const override { return false; }
  OptimizerPlan configure_optimizers() override;
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override;
  Outputs validation_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) override;
  void on_validation_epoch_end() override;
  Outputs test_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) override;
  Outputs predict_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) override;

 private:
  Tensor draw_codes(int64_t count) const;
  void evaluate(const Batch& batch, const char* stage);
  void initialize();

  Options options_;
  std::shared_ptr<Generator> generator_;
  std::shared_ptr<Discriminator> discriminator_;
  Tensor shown_codes_;  ///< a buffer, so that a resumed run shows the same; undefined without pictures
};

}  // namespace fulgur
