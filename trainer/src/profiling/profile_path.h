#pragma once

#include <filesystem>
#include <string>

namespace fulgur::detail {

/// The first free path of `folder/stem.json`, `stem-v1.json`, `stem-v2.json`, …: a run that resumes in its folder keeps
/// the measurements of the runs before.
std::filesystem::path free_profile_path(const std::filesystem::path& folder, const std::string& stem);

}  // namespace fulgur::detail
