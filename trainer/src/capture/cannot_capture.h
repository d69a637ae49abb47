#pragma once

#include <optional>
#include <string>

#include "fulgur/core/contracts/optimizer.h"

namespace fulgur::detail {

struct RunState;
struct Services;

/// Why the steps of this run cannot be captured, for display; nullopt if they can. Call after `start_training`.
std::optional<std::string> cannot_capture(const RunState& run);
/// Whether the optimizer's schedule changes its momentum.
bool schedules_momentum(const PlannedOptimizer& planned);

}  // namespace fulgur::detail
