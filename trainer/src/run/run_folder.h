#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace fulgur::detail {

/// Takes `<root>/<name>/version_N` by exclusive mkdir: runs that start together get different folders. With `version`,
/// exactly that one; a ConfigError where it is taken.
std::filesystem::path take_run_folder(const std::filesystem::path& root, const std::string& name,
                                      std::optional<int64_t> version);

/// Folder of run folders where no logger names another.
inline constexpr const char* kDefaultRunName = "fulgur_logs";

/// A run that `ckpt_path: auto` resumes.
struct RunToResume {
  std::filesystem::path folder;
  std::vector<std::string> passed_over;  ///< newer folders without anything to resume, newest first
};

/// The newest `version_N` under `<root>/<name>` of a fit that can be resumed, since it has a checkpoint, or that has
/// nothing left to do by `is_done`. A folder that another verb made, or a fit that ended before its first checkpoint,
/// is passed over. A fit that is at work and has no checkpoint yet is found as well, so that its lock refuses the
/// resume.
std::optional<RunToResume> newest_run_to_resume(const std::filesystem::path& root, const std::string& name,
                                                const std::function<bool(const std::filesystem::path&)>& is_done);

/// The folder of a fit's checkpoints, made as soon as the fit has its run folder.
std::filesystem::path checkpoint_folder_of(const std::filesystem::path& run_dir);

/// The mark of a run that has come to its end.
inline constexpr const char* kFinishedMark = "finished.json";

/// Where `last` and `best` point: in `config_folder` where that is a run folder, else in the newest `version_N` under
/// `<root>/<name>` that has a checkpoint; anything else is a path. Throws a CheckpointError that says where it looked.
std::filesystem::path find_checkpoint(const std::string& choice, const std::filesystem::path& root,
                                      const std::string& name, const std::filesystem::path& config_folder);

}  // namespace fulgur::detail
