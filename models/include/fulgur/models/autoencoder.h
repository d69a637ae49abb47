#pragma once

#include <vector>

#include "fulgur/core/contracts/module.h"
#include "fulgur/models/dense_stack.h"
#include "fulgur/nn/placed.h"

namespace fulgur {

/// Learns to reconstruct its input from a short code: the submodules `encoder` and `decoder` are fully connected layers
/// with mirrored widths, and may be placed on different devices. The loss is the mean squared error; logs `train_loss`,
/// `val_loss`, `test_loss`. Prediction returns `reconstruction` in the input's shape and `code` (N, code_size). Reads
/// `batch[0]`.
class FULGUR_API Autoencoder : public LightningModule {
 public:
  struct Options {
    int64_t in_features = 784;
    std::vector<int64_t> hidden = {128};
    int64_t code_size = 32;
    void fields(Fields& f);
  };
  explicit Autoencoder(const Options& options);

  /// Maps (N, …) to (N, code_size). Throws a ConfigError for samples that do not have in_features values.
  Tensor encode(const Tensor& input);
  /// Maps (N, code_size) to (N, in_features).
  Tensor decode(const Tensor& code);

  StepOutput training_step(const Batch& batch, int64_t batch_idx) override;
  Outputs validation_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) override;
  Outputs test_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) override;
  Outputs predict_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) override;

 private:
  Tensor loss_of(const Batch& batch);
  Options options_;
  nn::Placed<DenseStack> encoder_, decoder_;
};

}  // namespace fulgur
