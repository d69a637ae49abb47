#pragma once

#include "command_line.h"
#include "fulgur/core/text/errors.h"

/// Verbs that read run folders and write nothing to them (docs/seeing.md).
namespace fulgur::cli {

/// `runs [DIR]`: a table of the runs below a folder. Exit code 3 if the files of a run are damaged; the others are
/// listed.
ExitCode list_runs(const CommandLine& command);

/// `compare A B`: the differences of two runs.
ExitCode compare_runs(const CommandLine& command);

/// `report RUN…`: writes an HTML page and prints its path.
ExitCode report_runs(const CommandLine& command);

/// `watch RUN`: shows the run until no process trains it any more. On a terminal it redraws a table; elsewhere it
/// prints one line for each row. Ends early if nothing reads the output.
ExitCode watch_run(const CommandLine& command);

}  // namespace fulgur::cli
