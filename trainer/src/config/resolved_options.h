#pragma once

#include <cstdint>
#include <optional>

#include "fulgur/core/state/stage.h"
#include "fulgur/trainer/trainer_options.h"

namespace fulgur::detail {

/// The options that a run follows: `fast_dev_run`, `barebones` and `overfit_batches` have set other options, and limits
/// have their defaults. Created once, before everything else in the run.
struct ResolvedOptions : TrainerOptions {
  /// `profile_steps`: if not 0, the fit measures this many steps (TrainerComponents).
  ResolvedOptions(const TrainerOptions& written, TrainerFn fn, int64_t profile_steps = 0);

  /// Throws a ConfigError for options that contradict each other or the kind of optimization.
  void check(TrainerFn fn, bool automatic_optimization) const;

  std::optional<int64_t> epoch_limit;  ///< nullopt: none
  int64_t step_limit = -1;             ///< -1: none
  bool has_no_limit = false;           ///< no limit of epochs, steps or time is set: `epoch_limit` is a default
  bool saves_checkpoints = true;
  bool channels_last = false;
};

}  // namespace fulgur::detail
