#pragma once

#include <string_view>

#include "fulgur/trainer/config.h"

namespace fulgur::config {

/// Reads a config; a required option that a link will fill may be missing, and each link must name an existing option.
Config read_with_links(const ConfigNode& node, Problems& problems);

/// Whether a link of the config that is not read yet has this target, such as `model.init_args.vocab_size`.
bool names_link_target(const ConfigNode& root, std::string_view path);

/// Whether a link of the config fills the option at `key`, or one that contains it.
bool is_link_target(const Config& config, std::string_view key);

}  // namespace fulgur::config
