#pragma once

#include <filesystem>
#include <string_view>

namespace fulgur::detail {

/// A name beside `path` that nobody else uses, hidden, and known to remove_leftovers.
std::filesystem::path temporary_sibling(const std::filesystem::path& path);

/// True for a name that temporary_sibling made for a checkpoint or a link to one.
bool is_temporary(std::string_view name);

/// The folder that `path` lies in; `.` for a bare name.
std::filesystem::path folder_of(const std::filesystem::path& path);

/// `mkdir -p` with errors as CheckpointErrors.
void make_folders(const std::filesystem::path& folder);

}  // namespace fulgur::detail
