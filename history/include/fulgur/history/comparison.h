#pragma once

#include <string>

#include "fulgur/history/run.h"
#include "fulgur/history/runs_table.h"

namespace fulgur::history {

/// The options that differ between two runs, and their last and best metrics, time and throughput side by side. The
/// better value of the monitored metric is marked. Cells are shortened if a line is longer than the terminal.
FULGUR_API std::string comparison_text(const Run& a, const Run& b, const TextStyle& style);

/// The same as JSON.
FULGUR_API std::string comparison_json(const Run& a, const Run& b);

}  // namespace fulgur::history
