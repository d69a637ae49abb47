#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "fulgur/core/export.h"

namespace fulgur::history {

/// A page that shows runs: curves, checkpoints, config, pictures and system. It is one HTML document without references
/// to other files, and needs no script. Its size does not grow with the length of the runs: at most 150 charts of 500
/// lines, and the newest pictures. Each log is read once, with a bounded number of points per metric in memory.
/// Throws as read_run does, and a ConfigError if `folders` is empty.
FULGUR_API std::string report_page(const std::vector<std::filesystem::path>& folders);

}  // namespace fulgur::history
