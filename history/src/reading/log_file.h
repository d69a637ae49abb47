#pragma once

#include <array>
#include <filesystem>

namespace fulgur::history {

/// The logs that rows are read from.
inline constexpr std::array<const char*, 2> kLogs{"metrics.csv", "metrics.jsonl"};

/// The log that a run's rows are read from; empty if there is none. If the run has `ended` by itself, its loggers have
/// written all rows, and it is the table, which is faster to read. Otherwise it is the log whose last row has the
/// larger step, or else the JSON lines: CsvLogger may hold rows back (`flush_every_n_rows`) and lose them if it is
/// killed.
std::filesystem::path log_file(const std::filesystem::path& run_dir, bool ended);

}  // namespace fulgur::history
