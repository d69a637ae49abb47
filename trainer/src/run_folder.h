#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace fulgur::detail {

/// Takes `<root>/<name>/version_N` by exclusive mkdir: runs that start together get different folders. With `version`,
/// exactly that one; a ConfigError where it is taken.
std::filesystem::path take_run_folder(const std::filesystem::path& root, const std::string& name, std::optional<int64_t> version);

/// Folder of run folders where no logger names another.
inline constexpr const char* kDefaultRunName = "fulgur_logs";

/// The `version_N` under `<root>/<name>` with the highest number; nothing where there is none.
std::optional<std::filesystem::path> newest_run_folder(const std::filesystem::path& root, const std::string& name);

/// Where `last` and `best` point: in `config_folder` where that is a run folder, else in the newest `version_N` under
/// `<root>/<name>` that has a checkpoint; anything else is a path. Throws a CheckpointError that says where it looked.
std::filesystem::path find_checkpoint(const std::string& choice, const std::filesystem::path& root, const std::string& name,
                                      const std::filesystem::path& config_folder);

}  // namespace fulgur::detail
