#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "fulgur/core/progress.h"
#include "fulgur/core/state_tree.h"
#include "run/log_store.h"
#include "run/seen_counts.h"

namespace fulgur::detail {

struct RunState;

/// The run as it was between two windows of gradient accumulation, for a checkpoint that an exception causes: in the
/// middle of a window neither its gradients nor what was logged in it can be separated from those of the batch that
/// failed. Taken only if a callback may save then, since it copies buffers and generators. On the run's thread.
class RewindPoint {
 public:
  /// Remembers the run, which is at the start of a window.
  void take(RunState& run);
  bool there() const { return taken_.has_value(); }
  void forget() { taken_.reset(); }
  /// Takes the run back. The training loader is not moved: `loaders` is where it was, for a checkpoint.
  void restore(RunState& run);
  const StateTree::List& loaders() const { return taken_->loaders; }

 private:
  struct Taken {
    Progress counters;
    SeenCounts::Mark seen;
    LogStore::Mark logs;
    StateTree rng;
    StateTree::List loaders;
    std::vector<std::pair<Tensor, Tensor>> buffers;  // and their values
    int64_t logged_step;
    double batch_samples;
  };
  std::optional<Taken> taken_;
};

}  // namespace fulgur::detail
