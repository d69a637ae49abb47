#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace fulgur {

/// Name for a new event file in `folder`: `events.out.tfevents.TIME.HOST.PID.N`. TensorBoard reads the files of a
/// folder in name order, so the new one sorts after all existing ones, whatever the clock says.
std::string event_file_name(const std::filesystem::path& folder);

/// The event files in `folder`, in that order.
std::vector<std::string> event_file_names(const std::filesystem::path& folder);

}  // namespace fulgur
