#pragma once

#include <map>
#include <optional>
#include <vector>

#include "planning/prediction.h"

namespace fulgur::cli {

/// The predictions for a number of nodes.
struct NodePlan {
  /// For each sharding: the micro-batch with the most samples per second that fits; the smallest one if none does.
  std::vector<Prediction> shardings;
  /// Of those that fit and are as fast as the fastest, within 5 %, the first in the order of `PlannedSharding` whose
  /// memory leaves room for the error of its prediction, or else the first; one that can start if there is one.
  /// nullptr if none fits.
  const Prediction* best() const;
};

/// Traces steps as they are needed, and keeps them.
class PlanSearch {
 public:
  PlanSearch(TracedModel& model, PlannedRun run, HardwareProfile profile);

  /// With the batch size of the config.
  std::vector<Prediction> as_configured(const Mesh& mesh);
  NodePlan search(const Mesh& mesh);
  /// The smallest power of two of nodes with which a batch of one sample fits, up to `most`.
  std::optional<int64_t> fewest_nodes(int64_t devices, int64_t most);
  const StepSize& step(int64_t batch_size);
  /// The smallest power of two of samples that the module can train on, or the config's batch size.
  int64_t least_batch();

 private:
  Prediction best_batch(PlannedSharding sharding, const Mesh& mesh);
  TracedModel& model_;
  PlannedRun run_;
  HardwareProfile profile_;
  std::map<int64_t, StepSize> steps_;
  int64_t least_batch_ = 0;  ///< 0: not known yet
};

}  // namespace fulgur::cli
