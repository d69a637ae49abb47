#pragma once

#include "command_line.h"
#include "fulgur/core/text/errors.h"

namespace fulgur::cli {

/// `inspect CKPT`: prints the contents of a checkpoint or a file of weights to stdout; exit code 4 if a checkpoint is
/// damaged.
ExitCode inspect(const CommandLine& command);

}  // namespace fulgur::cli
