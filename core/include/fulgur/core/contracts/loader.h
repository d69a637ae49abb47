#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "fulgur/core/contracts/sampler.h"
#include "fulgur/core/state/batch.h"
#include "fulgur/core/state/state_tree.h"

namespace fulgur {

/// Batches, epoch by epoch. Its state is the *consumed* position (batches returned by `next`), never what was
/// prefetched; `load_state` before `start_epoch` makes that epoch continue from there. Used by one thread.
class FULGUR_API Loader : public Stateful {
 public:
  /// Batches per epoch; nullopt if unknown.
  virtual std::optional<int64_t> size() const = 0;
  /// Samples per epoch; nullopt if unknown.
  virtual std::optional<int64_t> samples() const = 0;
  /// Samples in a full batch.
  virtual int64_t batch_size() const = 0;
  /// Throws what `start_epoch` would throw because of the loaded state, if that is inside this epoch: a run that cannot
  /// continue is refused before it changes a file. Changes nothing that `start_epoch` does not set.
  virtual void check_loaded(int64_t /*epoch*/) {}
  /// Starts epoch `epoch`, at its first batch or at the position loaded for it.
  virtual void start_epoch(int64_t epoch) = 0;
  /// Starts epoch `epoch` at its first batch; a position that was loaded is forgotten. Not `start_epoch` alone, which
  /// takes that position. By default it starts the epoch twice, since a position is taken only once.
  virtual void restart_epoch(int64_t epoch);
  /// Stores the next batch in `out`; returns false at the end of the epoch. The batch stays valid until after the
  /// following call.
  virtual bool next(Batch& out) = 0;
  /// Gives back the batch of the last `next`, which was not trained on: `state()` is then the position before it.
  virtual void unread() = 0;
  /// Sets the seed and the share of this process; called by the Trainer before the first epoch.
  virtual void configure(uint64_t seed, int64_t rank, int64_t world_size) = 0;
  /// Called before `configure` if ranks train in lockstep: from now on all ranks get the same number of samples, and
  /// `rest` says what happens to samples that do not divide evenly. Without it (evaluation) every sample is read once,
  /// and shares may differ.
  virtual void share_evenly(UnevenShares /*rest*/) {}
  /// Converts the positions of `from` ranks within one epoch, all at `state`, to a state of this loader, which is
  /// configured for another number of ranks: the rest of the epoch is redistributed so that each sample is seen once.
  /// The default throws a CheckpointError, since only the loader knows its state.
  virtual StateTree reshard_state(const StateTree& state, int64_t from) const;
  /// True if this rank reads every world_size-th sample of the global order, starting at its rank; interleaving the
  /// rows of all ranks then restores that order.
  virtual bool shares_in_turns() const { return false; }
  /// True if batches come in an order other than the dataset's.
  virtual bool shuffles() const { return false; }
  /// From the next epoch on, yields batches in the dataset's own order; returns false if this loader cannot.
  virtual bool keep_order() { return !shuffles(); }
  /// From the next epoch on, a full batch has `size` samples; nullopt: as many as at the beginning. Call it between two
  /// epochs, or before `load_state`. Returns false, and changes nothing, if this loader cannot.
  virtual bool set_batch_size(std::optional<int64_t> /*size*/) { return false; }
};

/// Loaders of one stage, in order; empty if there are none.
using Loaders = std::vector<std::shared_ptr<Loader>>;

}  // namespace fulgur
