#pragma once

#include <string>

#include "fulgur/core/options/options.h"

namespace fulgur::config {

/// JSON Schema (draft 2020-12) of a map with these options. Components are definitions, one per registry kind.
std::string json_schema(const Fields& fields, const std::string& title);

}  // namespace fulgur::config
