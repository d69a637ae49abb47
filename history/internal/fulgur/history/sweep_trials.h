#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/history/sweep_spec.h"

namespace fulgur::history {

/// One run of a sweep: a point of the space with one seed.
struct SweepTrial {
  int64_t index = 0, point = 0;
  std::optional<uint64_t> seed;
  std::optional<int64_t> fold;     ///< of cross validation, from 1 on
  std::vector<ConfigNode> values;  ///< one per axis of the space
  /// Options of the command line, by key. Choices of a class come first, since they drop options that were set before.
  std::vector<std::pair<std::string, std::string>> overrides;
};

/// All that is known of a sweep before it starts.
struct SweepPlan {
  SweepSpec spec;
  std::vector<SweepTrial>
      trials;  ///< by index: the seeds of the first point, each with its folds; those of the second, …
  std::vector<int64_t> rungs;  ///< of halving, in its unit; empty without
  /// Each point is trained with each seed on each fold.
  int64_t runs_per_point() const {
    const int64_t seeds = spec.seeds.values.empty() ? 1 : static_cast<int64_t>(spec.seeds.values.size());
    return seeds * spec.folds.value_or(1);
  }
  int64_t points() const { return static_cast<int64_t>(trials.size()) / runs_per_point(); }
};

/// `length`: epochs or steps of the whole run, for halving. Throws a ConfigError if the first rung is not before it.
FULGUR_API SweepPlan plan_sweep(SweepSpec spec, std::optional<int64_t> length);

/// A value as the command line takes it: a scalar's text, or YAML on one line.
FULGUR_API std::string override_text(const ConfigNode& value);

/// `trial_0003`.
FULGUR_API std::string trial_folder(int64_t index);

/// `lr=0.1 hidden=[64]`, with the seed if the sweep has several.
FULGUR_API std::string trial_text(const SweepPlan& plan, const SweepTrial& trial);

}  // namespace fulgur::history
