#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fulgur/core/strategy.h"

namespace fulgur::detail {

/// Throws a ConfigError where one process cannot drive these devices: the CPU is one, other nodes have processes of their own.
void check_several_devices(const std::string& strategy, const StrategySetup& setup);

/// Sizes of at most `parts` chunks of `samples`, which differ by one at most, the larger first; no chunk is empty.
std::vector<int64_t> chunk_sizes(int64_t samples, int64_t parts);

}  // namespace fulgur::detail
