#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/core/contracts/metric.h"
#include "fulgur/core/contracts/module.h"
#include "fulgur/core/contracts/registry.h"

namespace fulgur {

/// The metrics that a model's option `metrics` names: one object for each stage and loader, logged under the stage and
/// the class (FBeta: `val_f_beta`).
class FULGUR_API StageMetrics {
 public:
  /// Sets `num_classes` of each metric if it is 0, and `ignore_index` if it is given here and not there. Throws a
  /// ConfigError that names `component` for two metrics of one class or options that do not fit together.
  void use(std::vector<Spec<PredictionMetric>> metrics, int64_t num_classes, const char* component,
           std::optional<int64_t> ignore_index = {});
  bool empty() const { return specs_.empty(); }
  /// Adds a batch to the metrics of this stage and loader, and logs them.
  void update(LightningModule& module, const std::string& stage, int64_t loader_idx, const Tensor& prediction,
              const Tensor& target);

 private:
  using Named = std::map<std::string, std::shared_ptr<PredictionMetric>>;
  Named make() const;

  const char* component_ = "";
  std::vector<Spec<PredictionMetric>> specs_;
  std::map<std::pair<std::string, int64_t>, Named> of_loader_;
};

}  // namespace fulgur
