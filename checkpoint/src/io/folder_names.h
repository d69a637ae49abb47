#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace fulgur::detail {

/// An unused, hidden name next to `path`, recognised by remove_leftovers.
std::filesystem::path temporary_sibling(const std::filesystem::path& path);

/// True for a name created by temporary_sibling for a checkpoint or a link to one.
bool is_temporary(std::string_view name);

/// The folder that contains `path`; `.` for a bare name.
std::filesystem::path folder_of(const std::filesystem::path& path);

/// Throws a CheckpointError if there is anything at `path`, the output of an export.
void refuse_existing(const std::filesystem::path& path);

/// Lets `write` write the output of an export under a hidden name, and renames it to `path`: afterwards the file is
/// either complete or as it was. Throws a CheckpointError if `path` is a folder, or exists and `replace` is false.
void write_output_file(const std::filesystem::path& path, bool replace,
                       const std::function<void(const std::filesystem::path& hidden)>& write);

/// Renames `from` to `to`; throws a FileError.
void rename_or_throw(const std::filesystem::path& from, const std::filesystem::path& to);

/// `00042`: the numbers of files that belong together.
std::string five_digits(int64_t number);

/// `mkdir -p` with errors as CheckpointErrors.
void make_folders(const std::filesystem::path& folder);

}  // namespace fulgur::detail
