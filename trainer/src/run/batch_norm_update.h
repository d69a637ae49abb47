#pragma once

#include <optional>
#include <string>
#include <vector>

#include "run/services.h"

namespace fulgur::detail {

/// See RunWeights.
std::optional<std::string> cannot_update_batch_norm(const RunState& run);
std::vector<std::string> update_batch_norm(RunState& run, Services& services);

}  // namespace fulgur::detail
