#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "fulgur/history/sweep_state.h"
#include "fulgur/history/sweep_trials.h"

/// Decisions of a sweep, as functions of the records of its trials.
namespace fulgur::history {

/// Successive halving: raises the targets of points that are promoted. Decides the same if it is called again.
///
/// A rung is decided when all points that may reach it have done so: the best 1/factor of them, rounded down, but at
/// least one, are promoted. With Promotion::async, the best 1/factor of the points that have reached a rung so far are
/// promoted before that, too. A point has reached a rung when all its seeds have; it counts by their mean. One that has
/// failed, or has no value, is not promoted. Of equal points the earlier one is better.
FULGUR_API void promote(const SweepPlan& plan, std::vector<TrialRecord>& trials);

/// The trial that is started next: interrupted ones first, then those that are promoted furthest, then the first one
/// that has not started. nullopt if none can start now.
FULGUR_API std::optional<size_t> next_trial(const SweepPlan& plan, const std::vector<TrialRecord>& trials);

/// The rung at which the trial pauses; nullopt if it trains to its end.
FULGUR_API std::optional<int64_t> rung_of(const SweepPlan& plan, const TrialRecord& record);

/// The first trial that failed because its run has not logged the metric, if no trial has a value of it: the name is
/// probably wrong, and the other trials would fail alike. nullopt otherwise.
FULGUR_API std::optional<size_t> trial_without_metric(const std::vector<TrialRecord>& trials);

/// Called when nothing runs and nothing can start: paused trials are `stopped`, unless others are still to run.
FULGUR_API void stop_paused(std::vector<TrialRecord>& trials);

/// Makes the records of an earlier process those of a sweep that continues: what ran is interrupted, what was stopped
/// is paused again. `retry_failed`: failed trials may start again.
FULGUR_API void continue_sweep(const SweepPlan& plan, std::vector<TrialRecord>& trials, bool retry_failed);

}  // namespace fulgur::history
