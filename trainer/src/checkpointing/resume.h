#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/trainer/components.h"
#include "fulgur/trainer/trainer_options.h"
#include "process/run_folder.h"

namespace fulgur::detail {

/// A checkpoint that a run resumes from.
struct ResumePoint {
  std::filesystem::path path;  ///< in the run's folder, or a link there to a checkpoint elsewhere
  CheckpointContent content;
};

/// Name of the run folders, as the first logger gives it.
RunName run_name(const TrainerOptions& options, const TrainerComponents& components);

/// `ckpt_path: auto`: the config's own run folder, else the newest run that can be resumed; nullopt if there is none.
std::optional<RunToResume> find_run_to_resume(const TrainerOptions& options, const TrainerComponents& components);

/// The newest checkpoint of a run that passes verification. Each one that does not pass is reported with its reason.
/// Nullopt if there is none; throws a CheckpointError if there are some but none passes. The caller must hold the run's
/// lock, else an active run may remove what is found.
std::optional<ResumePoint> find_resume_point(const std::filesystem::path& run_dir);

/// The run folder of a checkpoint, or of a link to one (`RUN/checkpoints/NAME.ckpt`); nullopt if it is elsewhere.
std::optional<std::filesystem::path> run_folder_of(const std::filesystem::path& checkpoint);

/// Whether a stop was requested by a limit of epochs, steps or time. Such a limit stops a resumed run again, unless it
/// was raised.
bool is_of_limit(std::string_view stop_reason);

/// Marks in a run folder that its run has finished.
void mark_finished(const std::filesystem::path& run_dir, const std::string& reason, const Progress& progress,
                   double fit_time_s);
/// Whether a run folder has that marker.
bool is_marked_finished(const std::filesystem::path& run_dir);
/// Removes the marker: the run continues.
void unmark_finished(const std::filesystem::path& run_dir);

/// A finished run, which `ckpt_path: auto` does not resume.
struct FinishedRun {
  std::filesystem::path run_dir;
  std::string reason;
  int64_t epochs = 0, global_step = 0;
  std::optional<std::filesystem::path> last_checkpoint, best_checkpoint;
};
/// Nullopt if the newest run has not ended, or ended at a limit that is higher now.
std::optional<FinishedRun> find_finished_run(const TrainerOptions& options, const TrainerComponents& components);

}  // namespace fulgur::detail
