#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "fulgur/core/export.h"

namespace fulgur {

/// How many samples of one process make a batch, or an optimizer step, at each position of a fit. It depends on the
/// position only, so that all ranks and a resumed run decide alike.
struct FULGUR_API BatchSizePlan {
  /// From position `at` on, `batch_size` samples.
  struct Change {
    double at = 0;
    int64_t batch_size = 1;
  };
  bool accumulates = false;          ///< batches stay as they are, and several of them make a step
  bool in_epochs = true;             ///< positions are epochs; otherwise optimizer steps
  std::vector<Change> changes = {};  ///< sorted by position

  /// The size at a position; `own`, that of the loader, before the first change.
  int64_t size_at(double position, int64_t own) const;
  /// The batches of `own` samples that make a step in a window that begins there; 1 if the plan changes batches.
  int64_t accumulation_at(double position, int64_t own) const { return accumulates ? size_at(position, own) / own : 1; }
  /// The size of the batches in an epoch that begins after `epochs` epochs and `steps` optimizer steps.
  int64_t size_of_epoch(int64_t epochs, int64_t steps, int64_t own) const;
  /// The sizes of batches that occur, each once: what `size_of_epoch` may return.
  std::vector<int64_t> sizes(int64_t own) const;

  /// The optimizer steps of a fit of `epochs` epochs, whose epochs have `batches_of(size)` batches of that size; each
  /// epoch ends an accumulation window. `accumulation` is the length of windows if the plan does not change it. If
  /// `limit` is not negative, the count may end once it is reached.
  int64_t count_steps(int64_t epochs, int64_t own, int64_t accumulation, int64_t limit,
                      const std::function<int64_t(int64_t)>& batches_of) const;

 private:
  bool has_reached(double position, size_t change) const;
  size_t changes_until(double position) const;
  int64_t steps_of_epoch(int64_t epoch, int64_t steps_before, int64_t batches, int64_t own) const;
};

/// Implemented by a callback that plans the size of training batches. The Trainer asks it when it creates the loaders
/// of a fit, and carries the plan out; at most one callback of a run may have one, and it must have no filter.
class FULGUR_API PlansBatchSizes {
 public:
  virtual ~PlansBatchSizes();
  /// The plan for a loader whose batches have `own` samples. It must be the same in each call, and on all ranks.
  /// Throws a ConfigError if there is none for this size.
  virtual BatchSizePlan batch_size_plan(int64_t own) const = 0;
};

}  // namespace fulgur
