#pragma once

#include "command_line.h"
#include "fulgur/core/errors.h"

namespace fulgur::cli {

/// `inspect CKPT`: what a checkpoint or a file of weights holds, to stdout; exit code 4 where a checkpoint is damaged.
ExitCode inspect(const CommandLine& command);

}  // namespace fulgur::cli
