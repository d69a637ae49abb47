#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace fulgur::cli {

/// The options of `sweep` itself (docs/sweeps.md).
struct SweepArguments {
  std::optional<std::filesystem::path> file, dir, show, collect;
  std::optional<int64_t> jobs, devices_per_trial, trial;
  std::optional<std::string> device_list;
  double grace_s = 60;
  bool retry_failed = false;
};

}  // namespace fulgur::cli
