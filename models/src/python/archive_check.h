#pragma once

#include <filesystem>
#include <string>

namespace fulgur::detail {

/// What a zip archive of PyTorch contains.
enum class ArchiveKind { script, state_dict, export_program, compiled_package, other };

/// Reads all of an archive, compares it with its checksums, which LibTorch does not do, and says what it is. Throws a
/// ConfigError for a file that is missing, damaged or no archive, and for code that is nested too deeply for LibTorch's
/// parser.
ArchiveKind check_archive(const std::filesystem::path& path, const char* component);

/// `; it is a file of torch.save. What to do.`: for the file of the wrong kind at `path`.
std::string describe_archive(ArchiveKind kind, const std::filesystem::path& path);

}  // namespace fulgur::detail
