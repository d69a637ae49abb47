#pragma once

#include <optional>
#include <string>

namespace fulgur::detail {

class Run;

/// Why the steps of this run cannot be captured, for display; nullopt if they can, and then the optimizer keeps its
/// rates on the device. Call after `start_training`.
std::optional<std::string> cannot_capture(const Run& run);

}  // namespace fulgur::detail
