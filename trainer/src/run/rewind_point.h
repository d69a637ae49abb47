#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "fulgur/core/state/progress.h"
#include "fulgur/core/state/state_tree.h"
#include "logging/log_store.h"
#include "logging/metric_store.h"
#include "run/callback_states.h"
#include "services/seen_counts.h"

namespace fulgur::detail {

/// The run as it was before a training batch, or before the hooks of an epoch's start or end, for a checkpoint that an
/// exception in them causes: the values that they logged, the random numbers that they drew, and their effects on
/// gradients, buffers and callbacks cannot be separated from the rest. `take_rewind_point` takes it.
struct RewindPoint {
  Progress counters;
  SeenCounts::Mark seen;
  LogStore::Mark logs;
  MetricStore::Mark metrics;
  StateTree rng;
  StateTree::List loaders;  ///< where the training loaders were, for a checkpoint: they are not moved back
  CallbackStates callbacks;
  std::optional<StateTree> loggers;
  std::vector<std::pair<Tensor, Tensor>> buffers, gradients;  ///< with their values, by parameter
  int64_t window_length, window_done, window_losses;
  int64_t logged_step;
  double batch_samples;
};

}  // namespace fulgur::detail
