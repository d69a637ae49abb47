#pragma once

#include "run/run.h"

namespace fulgur::detail {

/// Runs all loaders of a stage without gradients and gives the metrics of each. Restores every generator afterwards.
/// `batch_limit` caps the batches of each loader further (sanity check).
EvalReport evaluate(Run& run, RunningStage stage, std::optional<int64_t> batch_limit = std::nullopt);

/// A validation inside a fit. Where the module turns out to have no validation_step, validation is switched off with
/// one warning.
void validate_in_fit(Run& run, std::optional<int64_t> batch_limit = std::nullopt);

void warn_no_validation_step();

/// Runs the predict loaders. The report has this rank's outputs; those of all ranks go into files of the run folder.
PredictReport predict(Run& run);

}  // namespace fulgur::detail
