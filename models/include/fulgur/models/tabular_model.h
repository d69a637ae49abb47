#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/core/contracts/metric.h"
#include "fulgur/core/contracts/module.h"
#include "fulgur/models/classifier.h"

namespace fulgur {

/// What a TabularModel predicts. The options of models contain this struct and include its fields.
struct FULGUR_API TabularTask {
  enum class Kind { regression, classification };
  friend constexpr auto enum_names(Kind) {
    return std::to_array<EnumName<Kind>>({{Kind::regression, "regression"}, {Kind::classification, "classification"}});
  }
  Kind task = Kind::regression;
  int64_t num_outputs = 1;                 ///< numbers that are predicted, or classes
  std::vector<double> target_mean = {};    ///< of each predicted number; empty: 0
  std::vector<double> target_std = {};     ///< of each predicted number; empty: 1
  std::vector<double> class_weights = {};  ///< of each class in the loss of training; empty: 1

  void fields(Fields& f);
};

/// The steps of a model that predicts numbers or a class from a batch with named entries.
///
/// Regression: `target` has the units of the data, (N) for one output, (N, T) for T, or (N, horizon, T) for series. The
/// network computes standardised values: the loss is the mean squared error of (target - target_mean) / target_std.
/// Metrics and predictions are in the units of the data: logs `val_loss`, `val_rmse`, `val_mae` and `val_r2`, the same
/// for test, and `train_loss`; prediction returns `prediction` in the shape of the target. target_mean and target_std
/// are buffers, which are saved with the weights.
///
/// Classification: `target` is (N) int64. The loss is the cross entropy; logs `val_loss`, `val_acc`, the same for test,
/// and `train_loss`; prediction returns `probabilities` (N, C) and `prediction` (N) int64.
class FULGUR_API TabularModel : public LightningModule {
 public:
  /// Returns the network's outputs (N, num_outputs), or (N, horizon, num_outputs) for series: logits, or standardised
  /// values.
  virtual Tensor forward(const Batch& batch) = 0;

  StepOutput training_step(const Batch& batch, int64_t batch_idx) override;
  Outputs validation_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) override;
  Outputs test_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) override;
  Outputs predict_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) override;

 protected:
  /// Throws a ConfigError that names `component` if target_mean or target_std do not have num_outputs values, or are
  /// given for a classification.
  TabularModel(const TabularTask& task, const char* component);
  bool is_classification() const { return task_ == TabularTask::Kind::classification; }

 private:
  using NamedMetrics = std::map<std::string, std::shared_ptr<PredictionMetric>>;
  Tensor loss_of(const Tensor& outputs, const Tensor& target, const Tensor& class_weights = {}) const;
  /// Outputs of a regression in the units and the shape of the data.
  Tensor in_units(const Tensor& outputs) const;
  void evaluate(const Batch& batch, const std::string& stage, int64_t loader_idx);

  TabularTask::Kind task_;
  std::string component_;
  ClassWeights class_weights_;
  Tensor target_mean_, target_std_;                                  // (num_outputs), or undefined
  std::map<std::pair<std::string, int64_t>, NamedMetrics> metrics_;  // of each stage and loader
};

}  // namespace fulgur
