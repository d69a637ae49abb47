#pragma once

#include <string_view>

#include "fulgur/core/options/config_node.h"
#include "fulgur/trainer/config.h"

namespace fulgur::config {

/// Whether a setting of the command line or the environment changes the list of plug-ins.
bool chooses_plugins(std::string_view key);

/// Loads the plug-ins that `root` names under `plugin`, then those of `--plugin`, and writes all of them with absolute
/// paths to that key. A relative path of a file begins at the folder of the file, any other at the current folder.
void load_plugins(ConfigNode& root, const ConfigSources& sources, Problems& problems);

/// Adds what is wrong with the list under `plugin`, for functions that read no more of the config.
void check_plugins(const ConfigNode& root, Problems& problems);

}  // namespace fulgur::config
