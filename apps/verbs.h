#pragma once

#include "command_line.h"
#include "fulgur/core/errors.h"

namespace fulgur::cli {

/// Does what the command line says; results go to stdout. Throws what goes wrong.
ExitCode run(const CommandLine& command);

}  // namespace fulgur::cli
