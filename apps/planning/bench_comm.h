#pragma once

#include <string>
#include <vector>

#include "command_line.h"
#include "fulgur/core/text/errors.h"

namespace fulgur::cli {

/// `bench comm`: starts the processes that the config asks for, measures what exchanges between them and kernels of
/// their devices cost, and writes a profile for `plan`.
ExitCode bench_comm(const CommandLine& command, const std::string& program, const std::vector<std::string>& arguments);

}  // namespace fulgur::cli
