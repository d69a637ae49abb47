#pragma once

#include "fulgur/core/contracts/module.h"

namespace fulgur {

/// The steps of a classifier: cross entropy and accuracy of `forward(batch[0])` against `batch[1]`, the labels (N)
/// int64. Logs `train_loss`, `val_loss`, `val_acc`, `test_loss`, `test_acc`; prediction returns `probabilities` (N, C)
/// and `prediction` (N) int64. Derive and implement `forward`.
class FULGUR_API Classifier : public LightningModule {
 public:
  /// Returns logits (N, num_classes) for inputs (N, …).
  virtual Tensor forward(const Tensor& input) = 0;

  StepOutput training_step(const Batch& batch, int64_t batch_idx) override;
  Outputs validation_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) override;
  Outputs test_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) override;
  Outputs predict_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) override;

 private:
  void evaluate(const Batch& batch, const char* loss_name, const char* accuracy_name);
};

/// Mean cross entropy of logits (N, C) against labels (N) int64 in [0, C); -100 is excluded from the mean. Throws a
/// DataError for labels of another shape or dtype and, on the CPU, for one out of range, with its index and value.
FULGUR_API Tensor classification_loss(const Tensor& logits, const Tensor& labels);

}  // namespace fulgur
