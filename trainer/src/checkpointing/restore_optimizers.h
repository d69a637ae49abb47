#pragma once

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/trainer/checkpoint_loading.h"

namespace fulgur::detail {

struct RunState;

/// Restores the run's optimizers, their schedules and its precision from the checkpoint. Throws a CheckpointError if
/// they do not match.
void restore_optimizers(RunState& run, const CheckpointContent& content, const CheckpointLoading& load);

}  // namespace fulgur::detail
