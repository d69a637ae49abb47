#pragma once

#include <string>
#include <vector>

#include "command_line.h"
#include "fulgur/core/text/errors.h"

namespace fulgur::cli {

/// `sweep`: trains one config with many values of its options, and compares them (docs/sweeps.md). With `--show` and
/// `--collect` it trains nothing.
ExitCode run_sweep(const CommandLine& command, const std::string& program);

/// `sweep --trial I`: checks the sweep as `run_sweep` does, and returns the arguments of the fit that is trial I.
std::vector<std::string> fit_of_array_task(const CommandLine& command);

}  // namespace fulgur::cli
