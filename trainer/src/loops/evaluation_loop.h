#pragma once

#include "loops/run.h"

namespace fulgur::detail {

/// Runs all loaders of a stage without gradients and returns the metrics of each. Restores every generator afterwards.
/// `batch_limit` further limits the batches of each loader (sanity check).
EvalReport evaluate(Run& run, RunningStage stage, std::optional<int64_t> batch_limit = std::nullopt);

/// A validation inside a fit. If the module has no validation_step, validation is switched off with one warning.
void validate_in_fit(Run& run, std::optional<int64_t> batch_limit = std::nullopt);

void warn_no_validation_step();

/// Runs the predict loaders. The report has this rank's outputs; those of all ranks go into files of the run folder.
PredictReport predict(Run& run);

}  // namespace fulgur::detail
