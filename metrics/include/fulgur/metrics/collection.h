#pragma once

#include <map>
#include <memory>
#include <string>

#include "fulgur/core/contracts/metric.h"

namespace fulgur::metrics {

/// Metrics with names that all get the same predictions and targets.
///
///     for (const auto& [name, metric] : collection_.metrics()) log("val_" + name, *metric);
class FULGUR_API MetricCollection final {
 public:
  using Metrics = std::map<std::string, std::shared_ptr<PredictionMetric>>;
  explicit MetricCollection(Metrics metrics) : metrics_(std::move(metrics)) {}
  void update(const Tensor& prediction, const Tensor& target) {
    for (auto& [name, metric] : metrics_) metric->update(prediction, target);
  }
  void reset() {
    for (auto& [name, metric] : metrics_) metric->reset();
  }
  const Metrics& metrics() const { return metrics_; }

 private:
  Metrics metrics_;
};

}  // namespace fulgur::metrics
