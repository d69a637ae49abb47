#pragma once

#include "command_line.h"
#include "fulgur/core/text/errors.h"

namespace fulgur::cli {

/// `tune lr`: a range test in a run that leaves nothing behind but its curve; prints the suggestion. `several`: this
/// process is one of the run's; `first_rank` writes and prints.
ExitCode tune_lr(const CommandLine& command, const Config& config, bool several, bool first_rank);

}  // namespace fulgur::cli
