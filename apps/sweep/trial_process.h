#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "command_line.h"
#include "fulgur/history/sweep_state.h"
#include "fulgur/strategies/cluster_environment.h"

namespace fulgur::cli {

/// The arguments of the program for a trial: `fit --resume` with the files, plug-ins and overrides of the sweep, and
/// the trial's own values. `rung`: where it pauses, in epochs or steps.
std::vector<std::string> arguments_of_trial(const CommandLine& command, const history::SweepPlan& plan,
                                            const history::SweepTrial& trial, const std::filesystem::path& sweep_folder,
                                            std::optional<int64_t> rung);

/// How many trials run at the same time, and the GPUs of each (a value of CUDA_VISIBLE_DEVICES).
struct TrialSlots {
  int64_t jobs = 1;
  std::vector<std::string> devices;  ///< one per job; empty: those of this process
  int64_t threads = 1;               ///< of each trial: its share of the processors
};

/// Throws a ConfigError if there are fewer GPUs than the jobs need.
TrialSlots slots_of(const SweepArguments& arguments, const Environment& environment);

/// The environment of the trials in a slot: its GPUs, and `threads`, which the processes of a trial divide,
/// unless OMP_NUM_THREADS is set.
Environment environment_of_slot(const TrialSlots& slots, size_t slot, Environment environment);

}  // namespace fulgur::cli
