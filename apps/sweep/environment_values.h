#pragma once

#include <map>
#include <string>

#include "fulgur/core/options/config_node.h"

namespace fulgur::cli {

/// The environment variables to which `${env:NAME}` refers in a config or a sweep file, each with a hash of its value:
/// another value changes what the trials train. References below `trainer.logger` and `trainer.default_root_dir` are
/// left out: they say where results go, and often contain the number of a job.
std::map<std::string, std::string> environment_values(const ConfigNode& node);

}  // namespace fulgur::cli
