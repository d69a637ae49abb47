#pragma once

#include "checkpointing/checkpoint_table.h"

namespace fulgur::detail {

/// The `callbacks` of a checkpoint. Throws a CheckpointError in `fit` if one does not fit; elsewhere it is ignored with
/// a warning.
void load_callback_states(Restoring& r, const StateTree& states);

}  // namespace fulgur::detail
