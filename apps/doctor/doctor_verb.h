#pragma once

#include "command_line.h"
#include "fulgur/core/text/errors.h"

namespace fulgur::cli {

/// `doctor`: says what this machine offers a run and what is wrong with it. Exit code 1 if something is.
ExitCode doctor(const CommandLine& command);

/// `env`: versions and hardware as text, for a report of an error.
ExitCode show_environment(const CommandLine& command);

}  // namespace fulgur::cli
