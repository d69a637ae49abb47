#pragma once

#include "fulgur/core/state/state_tree.h"
#include "run/run_state.h"

namespace fulgur::detail {

/// The `loggers` of a checkpoint: what they had written before the work that a resume repeats, such as a validation
/// under way.
StateTree logger_states(const RunState& run);

}  // namespace fulgur::detail
