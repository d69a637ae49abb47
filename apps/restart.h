#pragma once

#include <vector>

#include "fulgur/core/process_place.h"
#include "fulgur/trainer/checkpoint_config.h"

namespace fulgur::cli {

/// Settles where a fit continues whose group was started again, as `agree_with_checkpoint` does for others: from the
/// newest checkpoint that was written since the first start; nowhere, with `auto`, where the run was finished since
/// then; else as it was started. Under torchrun the newest checkpoint counts however old it is, since an agent
/// may join late. Looks at files only, so that all ranks decide alike.
std::vector<ConfigDifference> continue_after_restart(Config& config, const ProcessPlace& place, bool locks);

}  // namespace fulgur::cli
