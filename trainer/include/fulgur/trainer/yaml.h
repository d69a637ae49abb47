#pragma once

#include <filesystem>
#include <string>

#include "fulgur/core/export.h"
#include "fulgur/core/options/config_node.h"
#include "fulgur/core/options/yaml_writer.h"

namespace fulgur {

/// Reads a YAML file into nodes. Errors are added to `problems`: more than 1 MiB, 64 levels or 100,000 nodes (including
/// aliases), zero or several documents, invalid UTF-8, duplicate keys, merge keys, tags.
FULGUR_API ConfigNode load_yaml_file(const std::filesystem::path& path, Problems& problems);

/// The same for a string; `source` stands for the file name in messages.
FULGUR_API ConfigNode parse_yaml(const std::string& text, const std::string& source, Problems& problems);

}  // namespace fulgur
