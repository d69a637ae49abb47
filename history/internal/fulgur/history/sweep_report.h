#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/history/runs_table.h"
#include "fulgur/history/sweep_state.h"

namespace fulgur::history {

/// The completed trial of the best point, with the first seed; nullopt if no point is complete.
FULGUR_API std::optional<size_t> best_trial(const SweepPlan& plan, const std::vector<TrialRecord>& trials);

/// One line per point, the best first: state, values, the metric (mean ± standard deviation over several seeds),
/// epochs, time, and why a trial has failed. The last cell is shortened if a line is longer than the terminal.
FULGUR_API std::string sweep_table(const SweepPlan& plan, const std::vector<TrialRecord>& trials,
                                   const TextStyle& style);

/// One row per trial, by number, with all digits.
FULGUR_API std::string sweep_csv(const SweepPlan& plan, const std::vector<TrialRecord>& trials);

/// The config of a trial's run, as YAML, without what the sweep has set for itself: `default_root_dir` is that of
/// `shared`, the config of the sweep. For a trial of cross validation, `of_fold`, `data.fold` is left out, too, and so
/// are the values that links took from the fold. nullopt if the run has no config file. Throws a DataError for a
/// damaged one.
FULGUR_API std::optional<std::string> trial_config(const std::filesystem::path& sweep_folder, const TrialRecord& trial,
                                                   const std::string& shared, const SweepTrial* of_fold = nullptr);

/// A page without references to other files: the table, the metric of the trials by step, the metric by each option,
/// and `best_config`, if it can be read, with `command`, which trains it. At most 60 curves. A run that cannot be read
/// has none.
FULGUR_API std::string sweep_page(const SweepPlan& plan, const std::vector<TrialRecord>& trials,
                                  const std::filesystem::path& sweep_folder,
                                  const std::optional<std::string>& best_config, const std::string& command);

}  // namespace fulgur::history
