#pragma once

#include "command_line.h"
#include "fulgur/core/text/errors.h"

namespace fulgur::cli {

/// `new`: a CMake project with a module, a data module, a callback, a config and tests, whose name is that of its
/// folder. CMakeUserPresets.json names the Fulgur and the LibTorch that this program runs with, as far as they can be
/// known. The folder appears complete or not at all. Says on stdout how to build it. Throws a ConfigError for a name
/// that CMake does not take, and for a folder that is not empty.
ExitCode create_project(const CommandLine& command);

}  // namespace fulgur::cli
