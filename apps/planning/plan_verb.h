#pragma once

#include "command_line.h"
#include "fulgur/core/text/errors.h"

namespace fulgur::cli {

/// `plan`: predicts memory, exchanges and time of a training step on many machines, without any of them.
ExitCode plan(const CommandLine& command);

/// `1..1024`, `1,2,8` or `4`: numbers of nodes, ascending. A range has the powers of two between its ends, and its end.
/// Throws a ConfigError for anything else.
std::vector<int64_t> planned_nodes(const std::string& text);

}  // namespace fulgur::cli
