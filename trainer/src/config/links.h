#pragma once

#include "fulgur/trainer/config.h"

namespace fulgur::config {

/// Reads a config; a required option that a link will fill may be missing, and each link must name an existing option.
Config read_with_links(const ConfigNode& node, Problems& problems);

}  // namespace fulgur::config
