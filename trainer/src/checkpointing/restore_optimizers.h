#pragma once

#include "checkpointing/checkpoint_entry.h"

namespace fulgur::detail {

/// Loads the factor that `scale_lr` had applied to the rates of the checkpoint, and sets `rates_scaled` for the current
/// batch size.
void load_lr_factor(Restoring& r, const StateTree& value);

/// Loads the optimizers' states, after `load_lr_factor`. Throws a CheckpointError if they do not match.
void load_optimizers(Restoring& r, const StateTree& value);

/// Loads the schedules, after the optimizers.
void load_schedules(Restoring& r, const StateTree& value);

}  // namespace fulgur::detail
