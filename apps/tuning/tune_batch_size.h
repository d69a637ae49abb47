#pragma once

#include <functional>
#include <vector>

#include "command_line.h"
#include "fulgur/core/text/errors.h"
#include "tuning/batch_trial.h"

namespace fulgur::cli {

/// A trial of a batch size, with what it has shown.
struct TriedBatchSize {
  int64_t batch_size = 0;
  BatchTrialReport report;
};

using RunBatchTrial = std::function<BatchTrialReport(int64_t batch_size)>;

/// Makes the trials that `search` asks for, and returns them in their order.
std::vector<TriedBatchSize> try_batch_sizes(BatchSizeSearch& search, const RunBatchTrial& run_trial);

/// `tune batch_size`: searches the greatest batch size that fits, by trials that `run_trial` makes; prints them and the
/// learning rates that go with the result. Throws an Error if no batch fits.
ExitCode tune_batch_size(const CommandLine& command, const Config& config, const RunBatchTrial& run_trial);

}  // namespace fulgur::cli
