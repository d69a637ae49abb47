#pragma once

#include <filesystem>
#include <string_view>

namespace fulgur::detail {

/// An unused, hidden name next to `path`, recognised by remove_leftovers.
std::filesystem::path temporary_sibling(const std::filesystem::path& path);

/// True for a name created by temporary_sibling for a checkpoint or a link to one.
bool is_temporary(std::string_view name);

/// The folder that contains `path`; `.` for a bare name.
std::filesystem::path folder_of(const std::filesystem::path& path);

/// `mkdir -p` with errors as CheckpointErrors.
void make_folders(const std::filesystem::path& folder);

}  // namespace fulgur::detail
