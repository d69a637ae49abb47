#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/trainer/trainer.h"
#include "run/run_folder.h"

namespace fulgur::detail {

/// A checkpoint that a run goes on from.
struct ResumePoint {
  std::filesystem::path path;
  CheckpointContent content;
};

/// Name of the folder of run folders: as the first logger names it.
std::string run_name(const TrainerOptions& options, const TrainerComponents& components);

/// `ckpt_path: auto`: the config's own run folder, else the newest run that can be resumed; nothing if there is none.
std::optional<RunToResume> find_run_to_resume(const TrainerOptions& options, const TrainerComponents& components);

/// The newest checkpoint of a run that verifies. Each one that does not is reported with its reason. Nothing if there
/// is none; a CheckpointError if there are some, and none verifies. The caller holds the run's lock, else a run at work
/// may remove what is found.
std::optional<ResumePoint> find_resume_point(const std::filesystem::path& run_dir);

/// The run folder of a checkpoint (`RUN/checkpoints/NAME.ckpt`); nothing where it lies elsewhere.
std::optional<std::filesystem::path> run_folder_of(const std::filesystem::path& checkpoint);

/// Whether a stop was requested by a limit of time. Such a limit asks again after a resume, unless it was raised.
bool is_of_time(std::string_view stop_reason);

/// Leaves in a run folder that its run came to its end.
void mark_finished(const std::filesystem::path& run_dir, const std::string& reason, const Progress& progress,
                   double fit_time_s);
/// Takes the mark away: the run goes on.
void unmark_finished(const std::filesystem::path& run_dir);

/// A run that `ckpt_path: auto` would go on with, but that has come to its end.
struct FinishedRun {
  std::filesystem::path run_dir;
  std::string reason;
  int64_t epochs = 0, global_step = 0;
  std::optional<std::filesystem::path> last_checkpoint, best_checkpoint;
};
/// Nothing where the newest run has not ended, or ended at a limit that is higher now.
std::optional<FinishedRun> find_finished_run(const TrainerOptions& options, const TrainerComponents& components);

}  // namespace fulgur::detail
