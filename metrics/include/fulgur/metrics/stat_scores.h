#pragma once

#include "fulgur/core/contracts/metric.h"
#include "fulgur/metrics/classification.h"

namespace fulgur::metrics {

/// Options of the metrics that count right and wrong predictions.
struct FULGUR_API StatScoresOptions {
  Task task = Task::multiclass;
  int64_t num_classes = 0;                   ///< classes, or labels (multilabel); not used by binary
  std::optional<Average> average = {};       ///< default: micro for Accuracy, else macro
  double threshold = 0.5;                    ///< binary, multilabel: larger probabilities count as 1
  int64_t top_k = 1;                         ///< multiclass: a target among the k largest predictions counts as found
  std::optional<int64_t> ignore_index = {};  ///< samples with this target do not count
  void fields(Fields& f);
};

/// Counts, for each class, right positives, predictions and targets; what it computes from them is up to the class
/// derived from it. A value without samples is 0. A class that has neither targets nor predictions is left out of
/// `macro`. Update costs a few small operations and never waits for the device.
class FULGUR_API StatScores : public PredictionMetric {
 public:
  using Options = StatScoresOptions;
  void update(const Tensor& prediction, const Tensor& target) override;
  Tensor compute() const override;

 protected:
  explicit StatScores(const Options& options, Average average = Average::macro);
  /// Of each class, float64 of shape (C), or () for micro.
  struct Counts {
    Tensor true_positives, false_positives, true_negatives, false_negatives;
  };
  virtual Tensor score(const Counts& counts) const = 0;
  Task task() const { return options_.task; }
  /// The class of `ignore_index` has no targets, but may be predicted; torchmetrics leaves it out of some averages.
  void leave_out_ignored_class() { leaves_out_ignored_ = true; }

 private:
  Options options_;
  Average average_;
  bool leaves_out_ignored_ = false;
  Tensor &true_positives_, &predicted_, &targets_, &samples_;
};

/// Share of right predictions. multiclass: of each class's targets, those that were found, which with `micro` is the
/// share of right predictions of all samples. Equals torchmetrics' Accuracy.
class FULGUR_API Accuracy final : public StatScores {
 public:
  explicit Accuracy(const Options& options) : StatScores(options, Average::micro) {}

 private:
  Tensor score(const Counts& counts) const override;
};

/// TP / (TP + FP): share of the predictions of a class that are right.
class FULGUR_API Precision final : public StatScores {
 public:
  explicit Precision(const Options& options) : StatScores(options) {}

 private:
  Tensor score(const Counts& counts) const override;
};

/// TP / (TP + FN): share of the targets of a class that are found.
class FULGUR_API Recall final : public StatScores {
 public:
  explicit Recall(const Options& options) : StatScores(options) {}

 private:
  Tensor score(const Counts& counts) const override;
};

/// TN / (TN + FP): share of the samples of other classes that are not taken for this one.
class FULGUR_API Specificity final : public StatScores {
 public:
  explicit Specificity(const Options& options) : StatScores(options) {}

 private:
  Tensor score(const Counts& counts) const override;
};

/// (1 + β²) TP / ((1 + β²) TP + β² FN + FP), the weighted harmonic mean of precision and recall; β = 1 is F1.
class FULGUR_API FBeta final : public StatScores {
 public:
  struct FULGUR_API Options {
    Task task = Task::multiclass;
    int64_t num_classes = 0;  ///< classes, or labels (multilabel); not used by binary
    double beta = 1;
    std::optional<Average> average = {};  ///< default: macro
    double threshold = 0.5;
    int64_t top_k = 1;
    std::optional<int64_t> ignore_index = {};
    void fields(Fields& f);
  };
  explicit FBeta(const Options& options);

 private:
  Tensor score(const Counts& counts) const override;
  double beta_;
};

/// TP / (TP + FP + FN): intersection over union (Jaccard index). If `ignore_index` is one of the classes, `macro` and
/// `micro` leave it out. Equals torchmetrics' JaccardIndex.
class FULGUR_API IoU final : public StatScores {
 public:
  explicit IoU(const Options& options) : StatScores(options) { leave_out_ignored_class(); }

 private:
  Tensor score(const Counts& counts) const override;
};

/// 2 TP / (2 TP + FP + FN): the Dice coefficient over all samples.
class FULGUR_API Dice final : public StatScores {
 public:
  explicit Dice(const Options& options) : StatScores(options) {}

 private:
  Tensor score(const Counts& counts) const override;
};

}  // namespace fulgur::metrics
