#pragma once

#include <string>

#include "fulgur/core/export.h"
#include "fulgur/core/options/config_node.h"

namespace fulgur {

struct YamlStyle {
  bool comments = false;   ///< writes each node's comment on a line above it
  bool skip_null = false;  ///< omits null entries
};

/// YAML that parses back to the same nodes.
FULGUR_API std::string to_yaml(const ConfigNode& node, const YamlStyle& style = {});

}  // namespace fulgur
