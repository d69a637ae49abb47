#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "fulgur/core/export.h"

namespace fulgur {

/// What the control groups of this process (of a container or a scheduler) allow it; nullopt: no limit.
struct FULGUR_API ProcessLimits {
  std::optional<int64_t> memory_bytes;  ///< the least of its group and of the groups above it
  std::optional<double> cpus;           ///< CPU time per second, which may be less than the CPUs of the affinity
};

/// Reads the limits of cgroup v2 and v1. `root` is the root of the file system, which tests replace. A file that is
/// missing or unreadable is no limit.
FULGUR_API ProcessLimits process_limits(const std::filesystem::path& root = "/");

}  // namespace fulgur
