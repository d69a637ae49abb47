#pragma once

#include <string_view>
#include <vector>

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/trainer/checkpoint_loading.h"
#include "run/rank_role.h"
#include "run/services.h"
#include "saving/checkpoint_store.h"

namespace fulgur::detail {

/// When an entry of a checkpoint is loaded, in this order.
enum class LoadPhase {
  facts,       ///< not loaded here: other code reads it
  data,        ///< before the setup of the data module
  loaders,     ///< before the loaders are created
  callbacks,   ///< after the weights
  loggers,     ///< before the loggers start
  optimizers,  ///< with the optimizers and schedules; a rollback also loads these
  loops,
  random,
  strategy,
};

/// The run that is saved.
struct Collecting {
  RunState& run;
  Services& services;
  bool weights_only = false;
  StateTree store = {};                ///< of the CheckpointStore
  std::vector<TensorPart> parts = {};  ///< what this rank writes of divided tensors, if all ranks write
};

/// The run that is restored, and from what.
struct Restoring {
  RunState& run;
  Services& services;
  const CheckpointContent& content;
  const CheckpointLoading& load;
  const ResumedCheckpoint* checkpoint = nullptr;  ///< for `loops`
  double rates_scaled = 1;                        ///< factor of scale_lr, since the batch size has changed
};

/// The values of one entry that the ranks have saved.
struct RankValues {
  std::vector<const StateTree*> all, counting;  ///< of all ranks, and of those whose logs count (`RankRole::counts`)
  /// Of the first rank that had the same share of the data; nullptr: the run divides the data into other shares.
  const StateTree* of_share = nullptr;
};

/// One key of a checkpoint's state.
struct CheckpointEntry {
  std::string_view key;
  LoadPhase phase;
  StateTree (*save)(Collecting&) = nullptr;              ///< nullptr: a run does not save it
  void (*load)(Restoring&, const StateTree&) = nullptr;  ///< nullptr for facts
  /// The part that is known only after the rows of the save's steps are written. It replaces what was saved; in a map,
  /// only the entries that it has.
  StateTree (*late)(Collecting&) = nullptr;
  bool per_rank = false;  ///< gathered from each rank (rank_states.h)
  /// What a rank loads if the roles of the ranks have changed; nullptr: the value of the first rank with the same share
  /// of the data, or of the first of all.
  StateTree (*of_rank)(const RankValues& values, const RankRole& role) = nullptr;
  bool with_weights = false;  ///< also in a checkpoint that has only weights
  bool own_file = false;      ///< `CheckpointContent::optimizers`, not in the state
};

}  // namespace fulgur::detail
