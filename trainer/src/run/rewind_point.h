#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "fulgur/core/state/progress.h"
#include "fulgur/core/state/state_tree.h"
#include "logging/log_store.h"
#include "run/callback_states.h"
#include "services/seen_counts.h"

namespace fulgur::detail {

struct RunState;
struct Services;

/// The run as it was before a training batch, or before the hooks of an epoch's start or end, for a checkpoint that an
/// exception in them causes: the values that they logged, the random numbers that they drew, and their effects on
/// gradients, buffers and callbacks cannot be separated from the rest. Taken only if a callback may save then, since it
/// copies buffers, generators, the states of callbacks and, inside an accumulation window, gradients. On the run's
/// thread.
class RewindPoint {
 public:
  /// Remembers the run, which is between two batches. `loggers`: what the loggers have written, if the hooks that
  /// follow may write.
  void take(RunState& run, const Services& services, std::optional<StateTree> loggers = {});
  bool there() const { return taken_.has_value(); }
  /// Call after a rollback, which has taken the run back further.
  void drop() { taken_.reset(); }
  /// Takes the run back. The training loader is not moved: `loaders` is where it was, for a checkpoint.
  void restore(RunState& run, Services& services);
  const StateTree::List& loaders() const { return taken_->loaders; }

 private:
  struct Taken {
    Progress counters;
    SeenCounts::Mark seen;
    LogStore::Mark logs;
    StateTree rng;
    StateTree::List loaders;
    CallbackStates callbacks;
    std::optional<StateTree> loggers;
    std::vector<std::pair<Tensor, Tensor>> buffers, gradients;  // with their values, by parameter
    int64_t window_length, window_done, window_losses;
    int64_t logged_step;
    double batch_samples;
  };
  std::optional<Taken> taken_;
};

}  // namespace fulgur::detail
