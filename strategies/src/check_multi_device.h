#pragma once

#include <string>

#include "fulgur/core/strategy.h"

namespace fulgur::detail {

/// Throws a ConfigError where one process cannot drive these devices: the CPU is one, other nodes have processes of
/// their own.
void check_multi_device(const std::string& strategy, const StrategySetup& setup);

}  // namespace fulgur::detail
