#pragma once

#include <filesystem>
#include <optional>

#include "fulgur/core/text/errors.h"
#include "fulgur/history/sweep_state.h"

namespace fulgur::cli {

/// The state in `folder`; nullopt if there is none. Throws a DataError if it is damaged.
std::optional<history::SweepState> read_state(const std::filesystem::path& folder);

/// The same; throws a ConfigError if there is none.
history::SweepState require_state(const std::filesystem::path& folder);

/// Writes `sweep.json`, through a rename; when it returns, the file is on the disk.
void write_state(const std::filesystem::path& folder, const history::SweepState& state);

/// Writes `sweep.csv`, `sweep.html` and, if a point is complete and has its config, `best.yaml`; removes an older
/// `best.yaml` otherwise. Prints the table, the page's path and the
/// best trial.
void show_results(const std::filesystem::path& folder, const history::SweepPlan& plan,
                  const history::SweepState& state);

/// 0, or 1 if a trial has failed, or 75 if there is something left to do.
ExitCode code_of(const std::vector<history::TrialRecord>& trials);

}  // namespace fulgur::cli
