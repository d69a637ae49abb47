#pragma once

#include <filesystem>
#include <string>

namespace fulgur::detail {

/// For an error about `wanted`, which is no checkpoint: ` Checkpoints nearby: A, B.` with at most three, or nothing.
/// They are looked for in it or in the nearest folder above it that exists, in `checkpoints/` there, and in its
/// subfolders.
std::string nearby_checkpoints(const std::filesystem::path& wanted);

}  // namespace fulgur::detail
