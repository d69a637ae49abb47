#pragma once

#include <functional>

#include "command_line.h"
#include "fulgur/core/text/errors.h"
#include "tuning/batch_trial.h"

namespace fulgur::cli {

/// `tune batch_size`: searches the greatest batch size that fits, by trials that `run_trial` makes; prints them and the
/// learning rates that go with the result. Throws an Error if no batch fits.
ExitCode tune_batch_size(const CommandLine& command, const Config& config,
                         const std::function<BatchTrialReport(int64_t batch_size)>& run_trial);

}  // namespace fulgur::cli
