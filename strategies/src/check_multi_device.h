#pragma once

#include <string>

#include "fulgur/core/contracts/strategy.h"

namespace fulgur::detail {

/// Throws a ConfigError if one process cannot drive these devices: the CPU is a single device, and other nodes have
/// their own processes.
void check_multi_device(const std::string& strategy, const StrategySetup& setup);

}  // namespace fulgur::detail
