#pragma once

#include <filesystem>
#include <optional>

#include "checkpointing/checkpoint_table.h"
#include "fulgur/checkpoint/run_lock.h"
#include "run/run_state.h"
#include "setup/hardware.h"

namespace fulgur::detail {

/// What an earlier fit of the same Trainer left, for `last` and `best`.
struct LatestCheckpoints {
  std::optional<std::filesystem::path> last, best;
};

/// What a run begins with, and in which folder it continues.
struct ResumePlan {
  std::optional<std::filesystem::path> checkpoint;
  std::optional<CheckpointContent> content;  ///< of it, until it is restored
  /// The run folder in which the checkpoint is, or a link to it; where a fit with a version that has no checkpoint yet
  /// begins again; and the one that this run continues in.
  std::optional<std::filesystem::path> checkpoint_run_dir, restarted_run_dir, run_dir;
  bool unfinished = false;  ///< the run in `run_dir` was not marked as finished; on rank 0
  std::optional<RunLock> lock;
  ResumedCheckpoint resumed = {};

  /// What restores `run`, which has its folder or has none.
  Restoring restoring(RunState& run, Services& services);
  /// Loads what belongs to this phase, if there is a checkpoint.
  void load(LoadPhase phase, RunState& run, Services& services);
};

/// Finds, locks and reads the checkpoint that `choice` names. Rank 0 looks; the others must be able to read it too.
ResumePlan plan_resume(RunState& run, const Hardware& hardware, const CheckpointChoice& choice,
                       const LatestCheckpoints& latest);

}  // namespace fulgur::detail
