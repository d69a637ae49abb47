#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fulgur/strategies/cluster_environment.h"

namespace fulgur::detail {

/// The cluster environments that programs and plug-ins have registered. Two functions instead of the registry, which
/// some programs that only detect their place do not link.
struct AddedEnvironments {
  std::vector<std::string> (*names)() = nullptr;
  /// The place that the environment `name` finds; nullopt if it does not recognise the process.
  std::optional<ProcessPlace> (*detect)(const std::string& name, const Environment& environment) = nullptr;
};

/// Set before main; both are null in a program without the registry.
AddedEnvironments& added_environments();

}  // namespace fulgur::detail
