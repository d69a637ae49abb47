#pragma once

#include <exception>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/trainer/components.h"
#include "fulgur/trainer/trainer_options.h"
#include "process/run_folder.h"

namespace fulgur::detail {

/// The names of run folders that a logger requests.
RunName run_name_of(const Logger& logger);
/// Those that the first logger of a run requests.
RunName run_name(const TrainerOptions& options, const TrainerComponents& components);

/// `ckpt_path: auto`: the config's own run folder, else the newest run that can be resumed; nullopt if there is none.
std::optional<RunToResume> find_run_to_resume(const TrainerOptions& options, const TrainerComponents& components);

/// Resolves `last` and `best`: in `config_folder` if that is a run folder, else in the newest `version_N` under
/// `<root>/<name>` that has a checkpoint, or in the version that `name` gives; anything else is a path. Throws a
/// CheckpointError that says where it looked.
std::filesystem::path find_checkpoint(const std::string& choice, const std::filesystem::path& root, const RunName& name,
                                      const std::filesystem::path& config_folder);

/// A path that a user gave, without a final slash. A link that only leads to a checkpoint in a run folder, or on the
/// way to one, is followed: the path in the run folder is what names the run.
std::filesystem::path named_checkpoint(const std::filesystem::path& given);

/// The run folder of a checkpoint, or of a link to one (`RUN/checkpoints/NAME.ckpt`); nullopt if it is elsewhere.
std::optional<std::filesystem::path> run_folder_of(const std::filesystem::path& checkpoint);

/// The config.yaml of a run; nullopt if it is missing, empty or damaged.
std::optional<ConfigNode> config_of_run(const std::filesystem::path& run_dir);

/// Whether a fit from a checkpoint of the run in `run_dir` begins another run: `default_root_dir` has another value
/// than the run's own config.yaml, and does not contain its folder. With its own value, a run whose folder was moved
/// continues there.
bool begins_another_run(const std::filesystem::path& run_dir, const std::filesystem::path& default_root_dir);

/// The checkpoint that `ckpt_path` names, and its run.
struct ResolvedCheckpoint {
  std::optional<std::filesystem::path>
      path;  ///< in the folder of the run, or a link there; nullopt if `auto` found none
  /// The run folder that contains `path`, unless another run begins; with `auto`, the folder of the chosen run, even
  /// without a checkpoint.
  std::optional<std::filesystem::path> run_dir;
  std::optional<CheckpointContent> content;  ///< with `auto`, which reads it to verify it
  std::vector<std::string> passed_over;      ///< with `auto`: newer folders without anything to resume
};

/// Resolves `choice`: `auto`, `last`, `best` or a path. Calls `lock` with the run folder, if there is one, before
/// anything of its checkpoints is read. Throws a CheckpointError if the checkpoint does not exist or is damaged.
ResolvedCheckpoint resolve_checkpoint(const std::string& choice, const TrainerOptions& options,
                                      const TrainerComponents& components,
                                      const std::function<void(const std::filesystem::path&)>& lock);

/// A checkpoint that was read and verified, possibly before the run that loads it exists.
struct FULGUR_API VerifiedCheckpoint {
  std::filesystem::path path;
  std::optional<CheckpointContent> content;  ///< nullopt once it was taken

  /// The content, if `checkpoint` is this checkpoint, or a link to it, and has not been replaced since. Keeps nothing,
  /// whatever it returns.
  std::optional<CheckpointContent> take(const std::filesystem::path& checkpoint);
};

/// Whether a stop was requested by a limit of epochs, steps or time. Such a limit stops a resumed run again, unless it
/// was raised.
bool is_of_limit(std::string_view stop_reason);

/// Values of a run's report.
using MetricValues = std::vector<std::pair<std::string, double>>;

/// Marks in a run folder that its run has finished, with these metrics.
void mark_finished(const std::filesystem::path& run_dir, const std::string& reason, const Progress& progress,
                   double fit_time_s, const MetricValues& metrics);
/// Whether a run folder has that marker.
bool is_marked_finished(const std::filesystem::path& run_dir);
/// Notes in a run folder that an exception has ended the fit, for those who look at it later. Never throws: the
/// exception is more important.
void mark_failed(const std::filesystem::path& run_dir, const std::exception& error) noexcept;
/// Removes both markers: the run continues.
void unmark_ended(const std::filesystem::path& run_dir);

/// A finished run, which `ckpt_path: auto` does not resume.
struct FinishedRun {
  std::filesystem::path run_dir;
  std::string reason;
  int64_t epochs = 0, global_step = 0;
  std::optional<std::filesystem::path> last_checkpoint, best_checkpoint;
  std::optional<MetricValues> metrics;  ///< nullopt: marked by an earlier version
};
/// Nullopt if the newest run has not ended, or ended at a limit that is higher now.
std::optional<FinishedRun> find_finished_run(const TrainerOptions& options, const TrainerComponents& components);

}  // namespace fulgur::detail
