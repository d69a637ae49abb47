#pragma once

#include "checkpointing/checkpoint_table.h"

namespace fulgur::detail {

/// The factor that `scale_lr` had put into the rates of the checkpoint: it follows the batch that the run has now.
void load_lr_factor(Restoring& r, const StateTree& value);

/// The optimizers' states, after `load_lr_factor`. Throws a CheckpointError if they do not match.
void load_optimizers(Restoring& r, const StateTree& value);

/// The schedules, after the optimizers.
void load_schedules(Restoring& r, const StateTree& value);

}  // namespace fulgur::detail
