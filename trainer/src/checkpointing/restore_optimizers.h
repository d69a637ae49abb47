#pragma once

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/trainer/checkpoint_loading.h"

namespace fulgur::detail {

class Run;

/// The run's optimizers, their schedules and its precision become those of the checkpoint. Throws a CheckpointError
/// where they are others.
void restore_optimizers(Run& run, const CheckpointContent& content, const CheckpointLoading& load);

}  // namespace fulgur::detail
