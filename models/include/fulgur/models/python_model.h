#pragma once

#include <array>
#include <string>
#include <vector>

#include "fulgur/core/contracts/metric.h"
#include "fulgur/core/contracts/module.h"
#include "fulgur/models/stage_metrics.h"

namespace fulgur {

/// A loss of torch.nn.functional with its default arguments, or that of the file of a model.
enum class NamedLoss {
  module,
  cross_entropy,
  nll_loss,
  binary_cross_entropy,
  binary_cross_entropy_with_logits,
  multi_margin_loss,
  soft_margin_loss,
  hinge_embedding_loss,
  mse_loss,
  l1_loss,
  smooth_l1_loss,
  huber_loss,
  kl_div,
  poisson_nll_loss,
};
/// The names of torch.nn.functional, and shorter ones.
constexpr auto enum_names(NamedLoss) {
  return std::to_array<EnumName<NamedLoss>>({
      {NamedLoss::module, "module"},
      {NamedLoss::cross_entropy, "cross_entropy"},
      {NamedLoss::nll_loss, "nll_loss"},
      {NamedLoss::nll_loss, "nll"},
      {NamedLoss::binary_cross_entropy, "binary_cross_entropy"},
      {NamedLoss::binary_cross_entropy, "bce"},
      {NamedLoss::binary_cross_entropy_with_logits, "binary_cross_entropy_with_logits"},
      {NamedLoss::binary_cross_entropy_with_logits, "bce_with_logits"},
      {NamedLoss::multi_margin_loss, "multi_margin_loss"},
      {NamedLoss::soft_margin_loss, "soft_margin_loss"},
      {NamedLoss::hinge_embedding_loss, "hinge_embedding_loss"},
      {NamedLoss::mse_loss, "mse_loss"},
      {NamedLoss::mse_loss, "mse"},
      {NamedLoss::l1_loss, "l1_loss"},
      {NamedLoss::l1_loss, "l1"},
      {NamedLoss::smooth_l1_loss, "smooth_l1_loss"},
      {NamedLoss::smooth_l1_loss, "smooth_l1"},
      {NamedLoss::huber_loss, "huber_loss"},
      {NamedLoss::huber_loss, "huber"},
      {NamedLoss::kl_div, "kl_div"},
      {NamedLoss::poisson_nll_loss, "poisson_nll_loss"},
  });
}

/// Which entries of a batch a model of Python reads, and its loss. The options of such models contain this struct and
/// include its fields.
struct FULGUR_API PythonTask {
  NamedLoss loss = NamedLoss::module;
  std::vector<std::string> inputs = {};  ///< entries of a batch for `forward`; empty: the first ones
  std::string target = {};               ///< entry of a batch; empty: the first one that is no input
  double label_smoothing = 0;
  int64_t num_classes = 0;
  std::vector<Spec<PredictionMetric>> metrics = {};

  void fields(Fields& f);
};

/// The mean loss of torch.nn.functional, a scalar. bfloat16 and float16 outputs are computed in float32. A target of a
/// regression that lacks only a last dimension of 1 gets it. Throws a DataError for shapes, dtypes and labels that the
/// loss does not take. `component` is named in errors.
FULGUR_API Tensor named_loss(NamedLoss loss, const Tensor& output, const Tensor& target, double label_smoothing,
                             const char* component);

/// The steps of a network that comes from Python. Logs `train_loss`, `val_loss`, `test_loss`, the metrics of `metrics`,
/// and, if the loss is that of a classification, `val_acc` and `test_acc`. Prediction returns `probabilities` and
/// `prediction` (N) int64 of a classification, otherwise what the network returns.
class FULGUR_API PythonModel : public LightningModule {
 public:
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override;
  Outputs validation_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) override;
  Outputs test_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) override;
  Outputs predict_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) override;
  bool has_trained_weights() const override { return true; }  // the file of the network has them

  /// The outputs of the network for its inputs, in order. Outputs without names of Python's get `output`, or `output0`,
  /// `output1`, ….
  virtual Outputs forward(const std::vector<Tensor>& inputs) = 0;
  /// The entries of a batch that `forward` reads, in its order. Throws a ConfigError if `inputs` names another entry
  /// than the batch has.
  std::vector<Tensor> inputs_of(const Batch& batch) const;
  /// The entry that the loss compares the output with. Throws a DataError if the batch has no such entry, and
  /// a ConfigError if `target` names another one.
  const Tensor& target_of(const Batch& batch) const;

 protected:
  PythonModel(const PythonTask& task, const char* component);
  /// What a step computes.
  struct Computed {
    Tensor loss;
    Outputs outputs;  ///< of the network; may be empty
    Outputs logged;   ///< further scalars
  };
  /// Computes outputs and loss; `stage` is train, val or test.
  virtual Computed compute(const Batch& batch, const std::string& stage);
  /// How many inputs `forward` has at least.
  virtual size_t number_of_inputs() const = 0;
  const PythonTask& task() const { return task_; }
  const char* component() const { return component_; }

 private:
  void evaluate(const Batch& batch, const std::string& stage, int64_t loader_idx);
  size_t index_of_target(const Batch& batch) const;
  PythonTask task_;
  const char* component_;
  StageMetrics metrics_;
};

}  // namespace fulgur
