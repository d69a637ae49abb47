#pragma once

#include "run/run.h"

namespace fulgur::detail {

/// Makes optimizers, schedules and handles of the run: the module's plan, or the config's. Returns the factor that
/// `scale_lr` put on all learning rates.
double plan_optimizers(Run& run);

/// Writes what was decided into a config: lengths of the schedule that were `auto`, and the rates times `factor`,
/// without `scale_lr`, so that the config gives the same run again.
void resolve_rates(ConfigNode& config, const OptimizerPlan& plan, double factor);

}  // namespace fulgur::detail
