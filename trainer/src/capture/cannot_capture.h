#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/core/contracts/module.h"
#include "fulgur/core/contracts/optimizer.h"
#include "fulgur/core/device/graph_capture.h"
#include "fulgur/core/state/batch.h"
#include "fulgur/core/state/stage.h"

namespace fulgur::detail {

struct RunState;
struct Services;

/// Why the steps of this run cannot be captured, for display; nullopt if they can. Call after `start_training`.
std::optional<std::string> cannot_capture(const RunState& run);
/// Why the run's strategy has no recorder.
std::string why_no_recorder(const RunState& run);
/// Why the steps of this stage cannot be captured on the CPU, whose recorder is `graph` or nullptr.
std::optional<std::string> cannot_capture_evaluation(const RunState& run, RunningStage stage,
                                                     const GraphCapture* graph);
/// Why captured steps on the CPU would not have the bits of eager ones.
std::optional<std::string> cannot_keep_bits(const RunState& run);
/// A hook of training that the module overrides, in which it may use what its steps have gathered in members; nullptr
/// if there is none.
const char* hook_after_steps(const LightningModule& module);
/// Why no batch like this one can be read by a recording; empty if it can. A copy of a view that has gaps has other
/// strides, for which kernels may add in another order.
std::string why_unreadable(const Batch& batch);
/// The parameters and buffers, with names for messages.
std::vector<std::pair<std::string, Tensor>> captured_state(const LightningModule& module);
/// Whether the optimizer's schedule changes its momentum.
bool schedules_momentum(const PlannedOptimizer& planned);

}  // namespace fulgur::detail
