#pragma once

#include "command_line.h"
#include "fulgur/core/text/errors.h"

namespace fulgur::cli {

/// `tokenize`: texts as a folder of tokens, for TokenFilesDataModule. The folder goes to stdout, progress to stderr.
/// Throws Interrupted after SIGINT, SIGTERM or SIGHUP; nothing is left then.
ExitCode tokenize(const CommandLine& command);

}  // namespace fulgur::cli
