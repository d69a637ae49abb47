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

/// Writes `sweep.json`, through a rename.
void write_state(const std::filesystem::path& folder, const history::SweepState& state);

/// Writes `sweep.csv`, `sweep.html` and, if a point is complete, `best.yaml`; prints the table, the page's path and the
/// best trial.
void show_results(const std::filesystem::path& folder, const history::SweepPlan& plan,
                  const std::vector<history::TrialRecord>& trials);

/// 0, or 1 if a trial has failed, or 75 if there is something left to do.
ExitCode code_of(const std::vector<history::TrialRecord>& trials);

}  // namespace fulgur::cli
