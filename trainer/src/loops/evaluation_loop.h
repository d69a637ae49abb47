#pragma once

#include "fulgur/trainer/reports.h"
#include "run/services.h"

namespace fulgur::detail {

/// Runs all loaders of a stage without gradients and returns the metrics of each. Restores every generator afterwards.
/// `batch_limit` further limits the batches of each loader (sanity check).
EvalReport evaluate(RunState& run, Services& services, RunningStage stage,
                    std::optional<int64_t> batch_limit = std::nullopt);

/// A validation inside a fit. If the module has no validation_step, validation is switched off with one warning.
void validate_in_fit(RunState& run, Services& services, std::optional<int64_t> batch_limit = std::nullopt);

void warn_no_validation_step();

/// Runs the predict loaders. The report has this rank's outputs; those of all ranks go into files of the run folder.
PredictReport predict(RunState& run, Services& services);

}  // namespace fulgur::detail
