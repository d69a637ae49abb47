#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/history/run.h"

namespace fulgur::history {

/// How a text is shown.
struct TextStyle {
  std::optional<int64_t> columns = {};  ///< the width of the terminal; null: no limit, for pipes and files
  bool colour = false;
};

/// Which runs are listed, and in which order.
struct RunsQuery {
  /// `KEY`, or `-KEY` for the largest first; empty: the order of the names. Runs without the value come last.
  std::string sort = {};
  /// `KEY OP VALUE`, several joined by `and`; empty: all. OP: = != < <= > >= ~ (contains).
  std::string filter = {};
};

/// The runs that `query` selects, in its order. A key is name, status, reason, epochs, steps, best, monitor or
/// duration (seconds), a metric (its last value), or a key of the config, whole or its end (`optimizer.init_args.lr`,
/// `lr`). A key that names components (`callbacks`, `model`; `class_path`: all) has the names of their classes. `sort:
/// best` has the best run first. Throws a ConfigError for an expression that cannot be read, for a key that no run has,
/// and for a value that no run can have, such as a text for a number.
FULGUR_API std::vector<Run> select_runs(std::vector<Run> runs, const RunsQuery& query);

/// One line per run: name, status, epochs, steps, best value, duration, and the options that are not the same in all
/// runs. Cells are shortened if the line is longer than the terminal.
FULGUR_API std::string runs_table(const std::vector<Run>& runs, const TextStyle& style);

/// The same as a JSON array, with all metrics.
FULGUR_API std::string runs_json(const std::vector<Run>& runs);

}  // namespace fulgur::history
