#pragma once

#include "run/services.h"

namespace fulgur::detail {

/// Creates the run's optimizers, schedules and handles: from the module's plan, or the config; applies `scale_lr` to
/// all learning rates.
void plan_optimizers(RunState& run, Services& services);

/// Writes the decisions into a config so that it reproduces the run: the rates times `factor`, without `scale_lr`. Each
/// schedule length that is `auto` gets a comment with its number of steps.
void resolve_rates(ConfigNode& config, const OptimizerPlan& plan, double factor);

}  // namespace fulgur::detail
