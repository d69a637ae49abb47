#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace fulgur::detail {

/// Name of the folder that contains run folders if no logger names another.
inline constexpr const char* kDefaultRunName = "fulgur_logs";

/// The names of run folders, `<root>/<name>/version_N`, as the first logger gives them.
struct RunName {
  std::string name = kDefaultRunName;
  std::optional<int64_t> version = {};  ///< the only one, if the logger names it
};

/// Creates `<root>/<name>/version_N` with an exclusive mkdir: runs that start together get different folders. If
/// `name` has a version, creates exactly that one, and throws a ConfigError if it is taken.
std::filesystem::path take_run_folder(const std::filesystem::path& root, const RunName& name);

/// Whether the folder of the version in `name` exists.
bool is_taken(const std::filesystem::path& root, const RunName& name);

/// A run that `ckpt_path: auto` resumes.
struct RunToResume {
  std::filesystem::path folder;
  std::vector<std::string> passed_over;  ///< newer folders without anything to resume, newest first
};

/// The newest `version_N` under `<root>/<name>` of a fit that can be resumed, since it has a checkpoint, or that has
/// nothing left to do according to `is_done`. Folders of other verbs, or of a fit that ended before its first
/// checkpoint, are skipped. A finished fit is not returned if such a fit began after it. An active fit without a
/// checkpoint yet is also returned, so that its lock prevents the resume. With a version, only that folder is
/// considered; it is returned if it belongs to a fit, even without a checkpoint.
std::optional<RunToResume> newest_run_to_resume(const std::filesystem::path& root, const RunName& name,
                                                const std::function<bool(const std::filesystem::path&)>& is_done);

/// The `version_N` under `<root>/<name>` with the highest number, whatever is in it, or the version that `name` gives;
/// empty if no run folder exists.
std::filesystem::path newest_run_folder(const std::filesystem::path& root, const RunName& name);

/// All run folders under `<root>/<name>`, newest first; with a version, only its folder, if it exists.
std::vector<std::filesystem::path> run_folders(const std::filesystem::path& root, const RunName& name);

/// The folder of a fit's checkpoints, created as soon as the fit has its run folder.
std::filesystem::path checkpoint_folder_of(const std::filesystem::path& run_dir);

/// Removes the folder of a run that a mistake in its config has ended before its first batch, if it contains only files
/// that every run writes at its start.
void remove_unused_folder(const std::filesystem::path& run_dir) noexcept;

/// Whether `run_dir` is the folder of a fit, which has a folder for checkpoints. False for an empty path.
bool has_checkpoint_folder(const std::filesystem::path& run_dir);

}  // namespace fulgur::detail
