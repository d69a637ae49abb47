#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/strategies/pipeline_actions.h"

namespace fulgur::detail {

/// How long actions take, in any unit.
struct ActionTimes {
  double forward = 1, backward_input = 1, backward_weights = 1;
  double of(ActionKind kind) const;
};

/// The same for stages that differ.
struct StageTimes {
  std::vector<ActionTimes> stages;
  std::vector<double> messages = {};  ///< from stage i to the next one, and back; empty: they take no time
};

/// What happens if ranks execute their actions in order, each as soon as what it needs is there.
struct SimulatedSchedule {
  /// The next action of each rank that waits forever, with what it waits for; empty if all ranks reach their end.
  std::vector<std::string> deadlock;
  double makespan = 0;
  double bubble = 0;  ///< fraction of the time in which a rank waits, the mean over ranks
  /// The most micro-batches of a stage whose forward is done and whose backward is not, for each rank.
  std::vector<int64_t> most_activations;
};

/// Executes the actions of all ranks. Stage s depends on the stages before and after it, wherever they are.
FULGUR_API SimulatedSchedule simulate(const std::vector<std::vector<PipelineAction>>& ranks, const StageTimes& times);
/// The same with stages that all take the same time.
FULGUR_API SimulatedSchedule simulate(const std::vector<std::vector<PipelineAction>>& ranks, int64_t stages,
                                      const ActionTimes& times = {});

}  // namespace fulgur::detail
