#pragma once

#include <cstdint>
#include <optional>

#include "fulgur/core/stage.h"
#include "fulgur/trainer/trainer_options.h"

namespace fulgur::detail {

/// The options as a run follows them: `fast_dev_run`, `barebones` and `overfit_batches` have set others, and limits
/// have their defaults. Made once, before anything else of the run.
struct ResolvedOptions : TrainerOptions {
  ResolvedOptions(const TrainerOptions& written, TrainerFn fn);

  /// Throws a ConfigError for options that contradict each other or the kind of optimization.
  void check(TrainerFn fn, bool automatic_optimization) const;

  std::optional<int64_t> epoch_limit;  ///< nullopt: none
  int64_t step_limit = -1;             ///< -1: none
  bool has_no_limit = false;           ///< neither of epochs nor of steps nor of time: `epoch_limit` is a default
  bool saves_checkpoints = true;
  bool channels_last = false;
};

}  // namespace fulgur::detail
