#pragma once

#include <functional>
#include <vector>

#include "fulgur/core/contracts/process_place.h"
#include "fulgur/trainer/checkpoint_config.h"

namespace fulgur::cli {

/// Decides from where a fit continues after its group was restarted, as `agree_with_checkpoint` does for other fits:
/// from the newest checkpoint that was written since the first start; with `auto`, from nowhere, if the run has
/// finished since then; else as at the first start. Under torchrun the newest checkpoint counts however old it is,
/// since an agent may join late. Looks only at files, so that all ranks decide the same.
std::vector<ConfigDifference> continue_after_restart(Config& config, const ProcessPlace& place, bool locks);

/// Decides from where a fit with `ckpt_path: auto` continues; with `--resume`, `start` is the same config without it.
/// If there is a run to resume, all of it is loaded, whatever `load` says about the start. Otherwise the run starts
/// like `start`.
std::vector<ConfigDifference> resume_or_start(Config& config, const Config& start,
                                              const std::function<std::vector<ConfigDifference>(Config&)>& agree);

}  // namespace fulgur::cli
