#pragma once

#include <filesystem>
#include <string>

#include "fulgur/core/config_node.h"
#include "fulgur/core/export.h"
#include "fulgur/core/yaml_writer.h"

namespace fulgur {

/// Reads one YAML file into nodes. What is wrong goes to `problems`: more than 1 MiB, 64 levels or 100,000 nodes (those
/// of aliases count), no or several documents, bytes that are no UTF-8, duplicate keys, merge keys, tags.
FULGUR_API ConfigNode load_yaml_file(const std::filesystem::path& path, Problems& problems);

/// The same for a text; `source` stands for the file name in messages.
FULGUR_API ConfigNode parse_yaml(const std::string& text, const std::string& source, Problems& problems);

}  // namespace fulgur
