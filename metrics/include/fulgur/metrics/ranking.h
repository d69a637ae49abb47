#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fulgur/core/contracts/metric.h"
#include "fulgur/metrics/classification.h"

namespace fulgur::metrics {

/// Options of the metrics over all decision thresholds.
struct FULGUR_API RankingOptions {
  Task task = Task::multiclass;
  int64_t num_classes = 0;                 ///< classes, or labels (multilabel); not used by binary
  Average average = Average::macro;        ///< micro: for multilabel only
  std::optional<int64_t> thresholds = {};  ///< so many thresholds from 0 to 1; null: exact, which keeps all predictions
  std::optional<int64_t> ignore_index = {};  ///< samples with this target do not count
  void fields(Fields& f);
};

/// Computes something from the true and false positives at each threshold; multiclass compares each class with the
/// others. With `thresholds`, the state has a fixed size and an update never waits for the device; without, each
/// prediction is kept, and `compute` sorts them. A class without positives or without negatives has no value and is
/// left out of the mean.
class FULGUR_API RankingMetric : public PredictionMetric {
 public:
  using Options = RankingOptions;
  void update(const Tensor& prediction, const Tensor& target) override;
  Tensor compute() const override;

 protected:
  RankingMetric(const char* name, const Options& options);
  /// Counts at thresholds from high to low, float64 of shape (T, C), and of all samples, (C).
  struct Curve {
    Tensor true_positives, false_positives, positives, negatives;
  };
  /// One value per column.
  virtual Tensor area(const Curve& curve) const = 0;

 private:
  Curve binned() const;
  /// Of the predictions that were kept.
  Tensor exact() const;

  Options options_;
  Tensor* bins_ = nullptr;  // (2, C, T + 1): negatives and positives between two thresholds
  std::vector<Tensor>* scores_ = nullptr;
  std::vector<Tensor>* targets_ = nullptr;  // -1: ignored
  Tensor edges_;
};

/// Area under the ROC curve, by the trapezoidal rule. Equals torchmetrics' AUROC.
class FULGUR_API Auroc final : public RankingMetric {
 public:
  explicit Auroc(const Options& options) : RankingMetric("Auroc", options) {}

 private:
  Tensor area(const Curve& curve) const override;
};

/// Σ (Rₙ − Rₙ₋₁) Pₙ over the thresholds, of precision P and recall R. Equals torchmetrics' and scikit-learn's.
class FULGUR_API AveragePrecision final : public RankingMetric {
 public:
  explicit AveragePrecision(const Options& options) : RankingMetric("AveragePrecision", options) {}

 private:
  Tensor area(const Curve& curve) const override;
};

/// The difference between the confidence of predictions and the share of them that is right, in bins of confidence: l1
/// is its mean (the expected calibration error), l2 the root of the mean square, max the largest.
class FULGUR_API CalibrationError final : public PredictionMetric {
 public:
  struct FULGUR_API Options {
    Task task = Task::multiclass;
    int64_t num_classes = 0;
    int64_t num_bins = 15;
    std::string norm = "l1";
    std::optional<int64_t> ignore_index = {};
    void fields(Fields& f);
  };
  explicit CalibrationError(const Options& options);
  void update(const Tensor& prediction, const Tensor& target) override;
  Tensor compute() const override;

 private:
  Options options_;
  Tensor &samples_, &confidence_, &right_;  // per bin
};

}  // namespace fulgur::metrics
