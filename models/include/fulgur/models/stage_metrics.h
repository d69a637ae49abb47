#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fulgur/core/contracts/metric.h"
#include "fulgur/core/contracts/module.h"
#include "fulgur/core/contracts/registry.h"

namespace fulgur {

/// The metrics that a model's option `metrics` names: one object for each stage and loader, logged under the stage and
/// the class (FBeta: `val_f_beta`), or under the
/// name that the config gives.
class FULGUR_API StageMetrics {
 public:
  /// The model whose metrics they are.
  struct Owner {
    const char* component;                     ///< for messages
    std::vector<std::string> logs = {"loss"};  ///< names that the model itself logs
    std::optional<int64_t> ignore_index = {};  ///< for metrics that have this option and do not set it
    /// A sentence for messages: what predictions and targets are.
    const char* compared = "The predictions are the logits, the targets are the labels of the classes.";
  };
  /// Sets `num_classes` of each metric if it is 0. Throws a ConfigError that names the metric and its place in the
  /// config for options that do not fit together or to the model, for two metrics with one name, and for a name that
  /// the model itself logs.
  void use(std::vector<Spec<PredictionMetric>> metrics, int64_t num_classes, Owner owner);
  bool empty() const { return specs_.empty(); }
  /// Adds a batch to the metrics of this stage and loader, and logs them.
  void update(LightningModule& module, const std::string& stage, int64_t loader_idx, const Tensor& prediction,
              const Tensor& target);

 private:
  struct Made {
    std::shared_ptr<PredictionMetric> metric;
    std::string place;  // in the config, for messages
  };
  using Named = std::map<std::string, Made>;
  Named make() const;
  std::string text(const std::string& place, std::string_view message) const;

  Owner owner_{.component = ""};
  std::vector<Spec<PredictionMetric>> specs_;
  std::map<std::pair<std::string, int64_t>, Named> of_loader_;
};

}  // namespace fulgur
