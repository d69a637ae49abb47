#pragma once

#include "command_line.h"
#include "fulgur/callbacks/lr_range_test.h"
#include "fulgur/core/text/errors.h"

namespace fulgur::cli {

struct LrTestReport {
  LrCurve curve;
  double initial_lr = 0;  ///< the tested rate in the config
  ExitCode exit_code = ExitCode::ok;
};

/// A range test in a run that leaves nothing behind. `several`: this process is one of the run's.
LrTestReport test_lr(const Config& config, const LrRangeTest::Options& options, bool several);

/// `tune lr`: a range test in a run that leaves nothing behind but its curve; prints the suggestion. `several`: this
/// process is one of the run's; `first_rank` writes and prints.
ExitCode tune_lr(const CommandLine& command, const Config& config, bool several, bool first_rank);

}  // namespace fulgur::cli
