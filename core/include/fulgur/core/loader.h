#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "fulgur/core/batch.h"
#include "fulgur/core/state_tree.h"

namespace fulgur {

/// Training samples that do not divide by the ranks: some of the epoch's first come once more, the last are left out,
/// or it is an error.
enum class UnevenShares { pad, drop, error };

/// Batches, epoch by epoch. Its state is the position that was *consumed* (batches given out by `next`), never what was
/// read ahead; `load_state` before `start_epoch` makes that epoch go on behind it. Used by one thread.
class FULGUR_API Loader : public Stateful {
 public:
  /// Batches per epoch; nothing where the length is unknown.
  virtual std::optional<int64_t> size() const = 0;
  /// Samples per epoch; nothing where unknown.
  virtual std::optional<int64_t> samples() const = 0;
  /// Samples in a full batch.
  virtual int64_t batch_size() const = 0;
  /// Begins epoch `epoch`, at its first batch or at the position that was loaded for it.
  virtual void start_epoch(int64_t epoch) = 0;
  /// The next batch into `out`; false at the end of the epoch. The batch stays valid after the following call.
  virtual bool next(Batch& out) = 0;
  /// Gives back the batch of the last `next`: it was not trained on, so `state()` lies before it.
  virtual void unread() = 0;
  /// Seed and share of this process; called by the Trainer before the first epoch.
  virtual void configure(uint64_t seed, int64_t rank, int64_t world_size) = 0;
  /// Called before `configure` where ranks train step by step together: from now on all get as many samples, and `rest`
  /// says what becomes of samples that cannot be shared out so. Without it (evaluation) every sample is read once, and
  /// shares may differ.
  virtual void share_evenly(UnevenShares /*rest*/) {}
  /// The position that `from` ranks had reached, each at `state` inside of the same epoch, as one of this loader, which
  /// is configured for another number of ranks: what is left of the epoch is shared out among them, so that each sample
  /// is seen once. Default: throws a CheckpointError, since only the loader knows its state.
  virtual StateTree reshard_state(const StateTree& state, int64_t from) const;
  /// True if this rank has every world_size-th sample of the order of all, from its rank on: rows of all ranks, taken
  /// in turns, are in that order then.
  virtual bool shares_in_turns() const { return false; }
  /// True where batches come in an order other than the dataset's.
  virtual bool shuffles() const { return false; }
  /// From the next epoch on, batches in the dataset's own order; false where this loader cannot.
  virtual bool keep_order() { return !shuffles(); }
};

/// Loaders of one stage, in order; empty where there are none.
using Loaders = std::vector<std::shared_ptr<Loader>>;

}  // namespace fulgur
