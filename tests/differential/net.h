#pragma once

#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/core/contracts/module.h"
#include "fulgur/nn/batch_norm.h"
#include "fulgur/nn/placed.h"

namespace fulgur::test {

/// A small regression net for runs that a seed makes up. What it computes depends on the batch and its place alone, so
/// that a loop written by hand can do the same.
class DifferentialNet : public LightningModule {
 public:
  struct Options {
    int64_t hidden = 4;
    bool norm = false, tied = false, unused = false, manual = false;
    double dropout = 0;
    int64_t manual_steps = 1;  ///< batches of a step in manual optimization
    int64_t no_loss_every = 0;
    int64_t nan_every = 0;
    std::vector<int64_t> skip_epoch;  ///< {epoch, batch}
    bool average = false;             ///< a buffer that each forward of training changes, and that outputs depend on
    bool nan_is_constant = false;     ///< a loss that is NaN has finite gradients
    int64_t nan_from = -1;            ///< from this step on each loss is NaN
    bool same_names = false;          ///< training and validation both log `loss`
    bool step_only = false;           ///< logs `step_loss` in steps alone
    bool sums = false;                ///< sums up its validation in members, and logs the mean itself
    void fields(Fields& f);
  };
  explicit DifferentialNet(const Options& options);

  bool automatic_optimization() const override { return !options_.manual; }
  /// The same computation, of a batch with one entry `x`.
  LayerChain stages() override;
  int on_train_batch_start(const Batch& batch, int64_t batch_idx) override;
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override;
  void on_train_epoch_end() override;
  Outputs validation_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) override;
  void on_validation_epoch_end() override;
  Outputs test_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) override;
  Outputs predict_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) override;
  std::optional<int64_t> num_tokens(const Batch& batch) const override;

  /// The loss of a training batch; undefined if it has none.
  Tensor loss(const Batch& batch, int64_t epoch, int64_t batch_idx);
  /// True if the rest of the epoch is left out from this batch on.
  bool skips_epoch(int64_t epoch, int64_t batch_idx) const;
  const Options& options() const { return options_; }

 private:
  Tensor forward(const Tensor& x);
  void log_loss(const Tensor& loss);
  /// NaN in the batches that the options say.
  Tensor with_nan(Tensor loss, int64_t epoch, int64_t batch_idx);
  /// The mean squared error over all entries `x`, `y` of the batch.
  Tensor error(const Batch& batch);

  Options options_;
  torch::nn::Linear first_;
  nn::Placed<torch::nn::LinearImpl> middle_, last_;  ///< a strategy may put them on other devices
  nn::BatchNorm1d norm_;
  Tensor unused_, average_, summed_;
  double summed_samples_ = 0;
};

/// True for one in `every` batches, by their place; never for 0.
bool is_hit(int64_t every, int64_t epoch, int64_t batch_idx);

}  // namespace fulgur::test
