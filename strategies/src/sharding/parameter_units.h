#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fulgur/core/contracts/module.h"

namespace fulgur::detail {

/// Parameters that are exchanged together.
struct ParameterUnit {
  std::string name;  ///< of the module that has them; empty: the parameters that are in no other unit
  std::vector<NamedParameter> parameters;
};

/// Divides `parameters` (of `module`, by their names) into units, in the order of their first parameters: each module
/// whose name matches a pattern, or without patterns each element of a `ModuleList`. The rest is one unit, and a unit
/// inside another one belongs to it. Throws a ConfigError for a pattern that matches no module with parameters.
std::vector<ParameterUnit> parameter_units(const torch::nn::Module& module,
                                           const std::vector<NamedParameter>& parameters,
                                           const std::optional<std::vector<std::string>>& patterns);

}  // namespace fulgur::detail
