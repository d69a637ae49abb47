#pragma once

#include <cstdint>
#include <optional>

#include "fulgur/history/runs_table.h"

namespace fulgur::cli {

/// False for TERM=dumb as well.
bool stdout_is_terminal();

/// The width of the terminal that shows stderr; nullopt if it goes elsewhere.
std::optional<int64_t> stderr_columns();

/// As the progress bar: no colour with NO_COLOR, and neither colour nor a limit of the width in a pipe.
history::TextStyle style_of_stdout();

int64_t terminal_rows();

}  // namespace fulgur::cli
