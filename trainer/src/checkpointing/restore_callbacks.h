#pragma once

#include "checkpointing/checkpoint_entry.h"

namespace fulgur::detail {

/// Restores the `callbacks` of a checkpoint. A state that does not fit its callback throws a CheckpointError in `fit`;
/// elsewhere it is ignored with a warning.
void load_callback_states(Restoring& r, const StateTree& states);

}  // namespace fulgur::detail
