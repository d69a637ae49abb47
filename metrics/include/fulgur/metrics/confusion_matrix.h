#pragma once

#include <string>

#include "fulgur/core/contracts/metric.h"
#include "fulgur/metrics/classification.h"

namespace fulgur::metrics {

/// How often samples of class i (row) were taken for class j (column). `compute` returns (C, C), for multilabel
/// (C, 2, 2): int64 counts, or float64 shares with `normalize`. Logged, it becomes a picture and a table.
class FULGUR_API ConfusionMatrix final : public PredictionMetric {
 public:
  struct FULGUR_API Options {
    Task task = Task::multiclass;
    int64_t num_classes = 0;                   ///< classes, or labels (multilabel); not used by binary
    double threshold = 0.5;                    ///< binary, multilabel: larger probabilities count as 1
    std::string normalize = "none";            ///< none, true (over each row), pred (over each column), all
    std::optional<int64_t> ignore_index = {};  ///< samples with this target do not count
    void fields(Fields& f);
  };
  explicit ConfusionMatrix(const Options& options);
  void update(const Tensor& prediction, const Tensor& target) override;
  Tensor compute() const override;
  std::string matrix_axes() const override { return "rows: label, columns: prediction"; }

 private:
  Options options_;
  Tensor& counts_;
};

}  // namespace fulgur::metrics
