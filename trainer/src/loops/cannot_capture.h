#pragma once

#include <optional>
#include <string>

namespace fulgur::detail {

class Run;

/// Why the steps of this run cannot be captured, for people; nothing where they can; the optimizer then keeps its
/// rates on the device. After `start_training`.
std::optional<std::string> cannot_capture(const Run& run);

}  // namespace fulgur::detail
