#pragma once

#include <string_view>

#include "fulgur/trainer/config.h"

namespace fulgur::config {

/// Reads a config; a required option that a link will fill may be missing, and each link must name an existing option.
Config read_with_links(const ConfigNode& node, Problems& problems);

/// Removes `link` if it is null, and the links whose source is null: a later file or the command line has removed them.
void remove_null_links(ConfigNode& root);

/// `model.width` and `model.init_args.width` are one target: of the links of one target, only the last is kept. To be
/// called after a source has been merged into `root`, since its new keys follow those of earlier sources.
void replace_earlier_links(ConfigNode& root);

/// Reports the targets that have several links in one file.
void check_links_once(const ConfigNode& root, Problems& problems);

/// The data module has changed, so it need not provide what the links were written for: marks the links of `root` by
/// `?` at the end of their sources. `apply_links` leaves out such a link if the data module does not provide its value.
void make_links_optional(ConfigNode& root);

/// Whether a link of the config that is not read yet has this target, such as `model.init_args.vocab_size`.
bool names_link_target(const ConfigNode& root, std::string_view path);

/// Whether a link of the config fills the option at `key`, or one that contains it.
bool is_link_target(const Config& config, std::string_view key);

}  // namespace fulgur::config
