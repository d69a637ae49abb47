#pragma once

#include <filesystem>
#include <functional>

#include "fulgur/history/run.h"
#include "reading/row_reader.h"

namespace fulgur::history {

/// read_run, which also passes each row to `each_row`.
Run read_run_rows(const std::filesystem::path& folder, const RowReader::Sink& each_row, Damage damage);

/// Everything but the metrics, and the step and the epochs of the last row.
Run read_run_files(const std::filesystem::path& folder, Damage damage);

/// Whether there is a lock file. A process removes its own when it ends; if nothing trains the run, one was killed.
bool has_lock_file(const std::filesystem::path& run_dir);

/// Adds a row to the run's metrics; `names` are those of the reader.
void add_row(Run& run, const std::vector<std::string>& names, const Row& row);

/// Called when all rows are added: a run of another verb than fit has no `finished.json`. It is finished if it has
/// written its values or its predictions, which it does at its end.
void judge_evaluation(Run& run);

/// Called when all rows are added: the monitor of a run whose config names none.
void choose_monitor(Run& run);

}  // namespace fulgur::history
