#pragma once

#include <span>
#include <string_view>

#include "checkpointing/checkpoint_store.h"
#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/trainer/checkpoint_loading.h"
#include "run/services.h"

namespace fulgur::detail {

/// When an entry of a checkpoint is loaded, in this order.
enum class LoadPhase {
  facts,       ///< by nothing here: others read it
  data,        ///< before the setup of the data module
  loaders,     ///< before the loaders are created
  callbacks,   ///< after the weights
  loggers,     ///< before the loggers start
  optimizers,  ///< with the optimizers and schedules; a rollback loads these too
  loops,
  random,
  strategy,
};

/// The run that is saved.
struct Collecting {
  RunState& run;
  Services& services;
  bool weights_only = false;
  StateTree store = {};  ///< of the CheckpointStore
};

/// The run that is restored, and from what.
struct Restoring {
  RunState& run;
  Services& services;
  const CheckpointContent& content;
  const CheckpointLoading& load;
  const ResumedCheckpoint* checkpoint = nullptr;  ///< for `loops`
  double rates_scaled = 1;                        ///< by scale_lr, since the batch is another one now
};

/// One key of a checkpoint's state.
struct CheckpointEntry {
  std::string_view key;
  LoadPhase phase;
  StateTree (*save)(Collecting&);
  void (*load)(Restoring&, const StateTree&) = nullptr;  ///< nullptr for facts
  /// What is known only after the rows of the save's steps are written. It replaces what was saved; of a map, the
  /// entries that it has.
  StateTree (*late)(Collecting&) = nullptr;
  bool per_rank = false;      ///< each rank's is gathered (rank_states.h)
  bool with_weights = false;  ///< also in a checkpoint of weights only
  bool own_file = false;      ///< `CheckpointContent::optimizers`, not in the state
};

/// All that a checkpoint holds of a run, beside the weights. A new piece of state is one row here and one in
/// docs/checkpoints.md.
std::span<const CheckpointEntry> checkpoint_entries();

/// Loads the entries of `phase` from `state`, a checkpoint's or a rank's part of it, in the order of the table. What is
/// absent in a checkpoint of weights only is left as it is; else it throws a CheckpointError that names it.
void load_entries(LoadPhase phase, Restoring& restoring, const StateTree& state);

}  // namespace fulgur::detail
