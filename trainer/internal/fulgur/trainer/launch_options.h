#pragma once

#include <cstdint>

#include "fulgur/core/contracts/strategy.h"
#include "fulgur/strategies/launcher.h"
#include "fulgur/trainer/trainer_options.h"

namespace fulgur {

/// How the `processes` of this node are started for a strategy with this plan. The environment says which node it is;
/// throws as `detect_node` does.
FULGUR_API LaunchOptions launch_options(const TrainerOptions& options, const LaunchPlan& plan, int64_t processes);

}  // namespace fulgur
