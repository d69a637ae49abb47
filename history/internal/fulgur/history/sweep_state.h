#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/core/options/enum_names.h"
#include "fulgur/history/sweep_trials.h"

namespace fulgur::history {

/// See docs/sweeps.md.
enum class TrialStatus { pending, running, interrupted, paused, stopped, completed, failed };
constexpr auto enum_names(TrialStatus) {
  return std::to_array<EnumName<TrialStatus>>({{TrialStatus::pending, "pending"},
                                               {TrialStatus::running, "running"},
                                               {TrialStatus::interrupted, "interrupted"},
                                               {TrialStatus::paused, "paused"},
                                               {TrialStatus::stopped, "stopped"},
                                               {TrialStatus::completed, "completed"},
                                               {TrialStatus::failed, "failed"}});
}

/// How far a trial is.
struct TrialRecord {
  TrialStatus status = TrialStatus::pending;
  int64_t target = 0;                           ///< the rung up to which it may train; past the last one: to the end
  std::vector<std::optional<double>> at_rungs;  ///< the value of the metric at each rung that it has reached
  std::optional<double> value;                  ///< the newest that counts
  int64_t epochs = 0, steps = 0;
  std::optional<double> seconds;  ///< of training
  std::string reason;             ///< why it failed
  std::string run;                ///< its run folder, relative to the sweep's
  bool lacks_metric = false;      ///< the run has not logged the metric; a trial that has failed, for this reason
};

/// The contents of `sweep.json`.
struct SweepState {
  std::string sweep, config;      ///< as YAML
  std::optional<int64_t> length;  ///< of the whole run, for halving
  std::vector<TrialRecord> trials;
  std::optional<int64_t> threads = {};  ///< of each trial, since the first start; unknown before it
  /// Hashes of the environment variables to which the config refers, by name; empty in files of earlier versions.
  std::map<std::string, std::string> environment = {};
};

FULGUR_API std::string sweep_json(const SweepState& state);

/// Throws a DataError that names `file` if the text is damaged.
FULGUR_API SweepState parse_sweep_json(std::string_view text, const std::filesystem::path& file);

/// The plan of a saved sweep. Throws as read_sweep does.
FULGUR_API SweepPlan plan_of(const SweepState& state);

/// Lines that say in which keys of the sweep file and of the config two sweeps differ, or which trial has other values
/// because the keys have another order; empty if the trials are the same. `metric`, `mode` and `value` may differ,
/// unless halving has compared trials of `saved` by them.
FULGUR_API std::string sweep_differences(const SweepState& saved, const SweepState& given);

/// Whether `metric`, `mode` or `value` differs.
FULGUR_API bool is_ranked_otherwise(const SweepState& saved, const SweepState& given);

/// Reads the records of all trials again, after the metric of the sweep or its mode has changed. Trials that failed
/// only because they lacked the former metric become completed or interrupted. Throws as read_trial does.
FULGUR_API void rank_again(const SweepPlan& plan, const std::filesystem::path& sweep_folder,
                           std::vector<TrialRecord>& trials);

/// Fills what the newest run folder of the trial says: epochs, steps, seconds, the value of the metric, and `run`.
/// Returns how its run stands: completed, failed, interrupted, running, or pending if it has no run folder. A run
/// without the metric has failed. Throws a DataError for a damaged log.
FULGUR_API TrialStatus read_trial(const SweepSpec& spec, const std::filesystem::path& sweep_folder, int64_t index,
                                  TrialRecord& record);

/// `the run logged train_loss, val_loss; did you mean 'val_loss'?`. Throws as read_trial does.
FULGUR_API std::string logged_instead(const SweepSpec& spec, const std::filesystem::path& run_folder);

/// The record of a trial after `read_trial`, for processes that have trained trials without the sweep's. A failure with
/// its reason remains, unless the run is finished or running now, or is a newer one. With halving, only a finished run
/// changes the status. Throws as read_trial does.
FULGUR_API TrialRecord collected_trial(const SweepPlan& plan, const std::filesystem::path& sweep_folder, int64_t index,
                                       const TrialRecord& before);

}  // namespace fulgur::history
