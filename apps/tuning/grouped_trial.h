#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/strategies/launcher.h"
#include "tuning/batch_trial.h"

namespace fulgur::cli {

/// A trial of a batch size by a group of processes, which are started for it and end with it: what one of them runs out
/// of decides for all, and no memory is left.
struct GroupedTrial {
  int64_t batch_size = 0;
  std::filesystem::path folder;  ///< where the processes leave their result
};

/// The trial that this process was started for; nullopt if it was started for none.
std::optional<GroupedTrial> trial_of_process();

/// Runs the trial in a process of the group; leaves the result for `launch_trial`.
ExitCode run_grouped_trial(const GroupedTrial& trial, const Config& config, int64_t steps, bool first_rank);

/// Starts the group, and returns what it has found. Throws the DataError of one of its processes, and a LaunchFailure
/// if it has failed for another reason than a lack of memory or of data.
BatchTrialReport launch_trial(int64_t batch_size, const LaunchOptions& launched,
                              const std::vector<std::string>& arguments);

}  // namespace fulgur::cli
