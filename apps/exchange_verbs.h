#pragma once

#include "command_line.h"
#include "fulgur/core/text/errors.h"

namespace fulgur::cli {

/// `export CKPT`: the weights of a checkpoint as a file that Python reads. The path that was written goes to stdout.
ExitCode export_checkpoint(const CommandLine& command);

/// `import FILE`: a checkpoint of the config's module with the weights of a file. Its path goes to stdout.
ExitCode import_weights(const CommandLine& command, const Config& config);

}  // namespace fulgur::cli
