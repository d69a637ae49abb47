#pragma once

#include "fulgur/core/options/log_options.h"
#include "fulgur/core/state/state_tree.h"

namespace fulgur::detail {

/// Options of a logged value as data, for checkpoints and for other ranks.
StateTree log_options_state(const LogOptions& options);
LogOptions log_options_from(const StateTree& state);

}  // namespace fulgur::detail
