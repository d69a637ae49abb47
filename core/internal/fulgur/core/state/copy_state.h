#pragma once

#include "fulgur/core/state/state_tree.h"

namespace fulgur::detail {

/// The state with copies of its tensors, which their owner may change. Does not wait for a device.
FULGUR_API StateTree copy_state(const StateTree& state);

}  // namespace fulgur::detail
