#pragma once

#include <string>

#include "fulgur/core/contracts/metric.h"
#include "fulgur/core/options/fields.h"

namespace fulgur::metrics {

/// Mean of squared differences; its root with `squared: false`. Predictions and targets of any shape, the same for
/// both.
class FULGUR_API MeanSquaredError final : public PredictionMetric {
 public:
  struct FULGUR_API Options {
    bool squared = true;  ///< false: the root (RMSE)
    void fields(Fields& f);
  };
  MeanSquaredError();
  explicit MeanSquaredError(const Options& options);
  void update(const Tensor& prediction, const Tensor& target) override;
  Tensor compute() const override;

 private:
  bool squared_;
  Tensor &sum_, &count_;
};

/// Mean of absolute differences, over any shape.
class FULGUR_API MeanAbsoluteError final : public PredictionMetric {
 public:
  MeanAbsoluteError();
  void update(const Tensor& prediction, const Tensor& target) override;
  Tensor compute() const override;

 private:
  Tensor &sum_, &count_;
};

/// Means and sums of squared deviations of pairs of values. Two parts are merged by Chan's formula
/// (https://doi.org/10.1080/00031305.1983.10483115), which stays exact if the mean is large compared with the
/// deviation.
class FULGUR_API PairMoments : public PredictionMetric {
 public:
  void update(const Tensor& prediction, const Tensor& target) override;
  void merge_state(const StateTree& other) override;

 protected:
  PairMoments();
  Tensor &count_, &means_, &squares_, &product_;  // (), (2), (2), (): of predictions and targets

 private:
  void merge(const Tensor& count, const Tensor& means, const Tensor& squares, const Tensor& product);
};

/// 1 − Σ (target − prediction)² / Σ (target − mean)², over all values.
class FULGUR_API R2Score final : public PairMoments {
 public:
  Tensor compute() const override;
};

/// Pearson's correlation coefficient of predictions and targets, over all values.
class FULGUR_API PearsonCorrCoef final : public PairMoments {
 public:
  Tensor compute() const override;
};

/// Pearson's correlation of the ranks; equal values have their mean rank. Keeps all values.
class FULGUR_API SpearmanCorrCoef final : public PredictionMetric {
 public:
  SpearmanCorrCoef();
  void update(const Tensor& prediction, const Tensor& target) override;
  Tensor compute() const override;

 private:
  std::vector<Tensor>&predictions_, &targets_;
};

/// Cosine of the angle between the rows of predictions and targets, both (N, D): their mean, or with `reduction: sum`
/// their sum.
class FULGUR_API CosineSimilarity final : public PredictionMetric {
 public:
  struct FULGUR_API Options {
    std::string reduction = "mean";
    void fields(Fields& f);
  };
  CosineSimilarity();
  explicit CosineSimilarity(const Options& options);
  void update(const Tensor& prediction, const Tensor& target) override;
  Tensor compute() const override;

 private:
  bool mean_;
  Tensor &sum_, &count_;
};

}  // namespace fulgur::metrics
