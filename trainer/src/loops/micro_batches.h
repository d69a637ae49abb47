#pragma once

#include <functional>
#include <vector>

#include "fulgur/core/strategy.h"
#include "run/services.h"

namespace fulgur::detail {

/// Calls `step` on each part of a batch, through the strategy and under the precision's guard, and passes what they
/// logged and requested to the run, in the order of the parts.
void run_parts(RunState& run, const std::vector<MicroBatch>& parts,
               const std::function<void(const MicroBatch&, size_t)>& step);

/// The training step of a whole batch from those of its parts: the sum of their losses by their share of the samples,
/// on the run's device; undefined if a part has none. Other outputs as `join_outputs`.
StepOutput training_step_of_parts(RunState& run, const std::vector<MicroBatch>& parts, int64_t batch_idx);

/// Outputs of parts, in the order of the samples, on the run's device: rows one after the other; of single values the
/// mean by the share of the samples. Throws an Error if the parts have other names or numbers of rows that are not
/// their samples.
Outputs join_outputs(const RunState& run, const std::vector<MicroBatch>& parts, const std::vector<Outputs>& outputs);

}  // namespace fulgur::detail
