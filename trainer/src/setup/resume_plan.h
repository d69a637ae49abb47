#pragma once

#include <filesystem>
#include <optional>

#include "checkpointing/checkpoint_table.h"
#include "fulgur/checkpoint/run_lock.h"
#include "run/run_state.h"
#include "setup/hardware.h"

namespace fulgur::detail {

/// The checkpoints of an earlier fit of the same Trainer, for `last` and `best`.
struct LatestCheckpoints {
  std::optional<std::filesystem::path> last, best;
};

/// The checkpoint that a run begins with, and the folder in which it continues.
struct ResumePlan {
  std::optional<std::filesystem::path> checkpoint;
  std::optional<CheckpointContent> content;  ///< of the checkpoint, until it is restored
  /// The run folder that contains the checkpoint, or a link to it; the folder in which a fit begins again if its
  /// version has no checkpoint yet; and the folder that this run continues in.
  std::optional<std::filesystem::path> checkpoint_run_dir, restarted_run_dir, run_dir;
  bool begins_again = false;  ///< `run_dir` is `restarted_run_dir`: nothing in it is continued
  bool unfinished = false;    ///< the run in `run_dir` was not marked as finished; on rank 0
  bool is_named = false;  ///< `checkpoint` was given as its own path, not as `last`, `auto` or the link of one of them
  std::optional<RunLock> lock;
  ResumedCheckpoint resumed = {};

  /// The object that restores `run`, whose folder, if it has one, was already chosen.
  Restoring restoring(RunState& run, Services& services);
  /// Loads the entries of this phase, if there is a checkpoint.
  void load(LoadPhase phase, RunState& run, Services& services);
};

/// Finds, locks and reads the checkpoint that `choice` names. Rank 0 looks; the others must be able to read it too. It
/// needs the ranks, which `choose_hardware` sets up: the parameter of its result only orders the calls.
ResumePlan plan_resume(RunState& run, const Hardware& hardware, const CheckpointChoice& choice,
                       const LatestCheckpoints& latest);

}  // namespace fulgur::detail
