#pragma once

#include <string>
#include <vector>

#include "command_line.h"
#include "fulgur/core/text/errors.h"

namespace fulgur::cli {

/// Executes the command line; results go to stdout. Throws on errors. `arguments` are those of the program, for the
/// processes that it may have to start.
ExitCode run(const CommandLine& command, const std::string& program, const std::vector<std::string>& arguments);

}  // namespace fulgur::cli
