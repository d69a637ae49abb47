#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/core/contracts/key_map.h"
#include "fulgur/core/options/config_node.h"

namespace fulgur::config {

/// What the `config.json` beside the weights of `pretrained` says about the model, by the rules of its key map: options
/// that `root`, an interpolated config, does not set are set, and their names are returned; an option with another
/// value, and a part that the model does not have, are reported. Targets of `link` are left to the data module. Nothing
/// happens without a key map or without that file.
std::vector<std::string> take_weights_config(ConfigNode& root, Problems& problems);

/// The `model_type` in the `config.json` beside the weights, and the key map of such weights; nullopt if that file does
/// not say it, or if no key map knows it.
std::optional<std::pair<std::string, std::string>> key_map_beside(const std::filesystem::path& weights);

/// The options of a model that have other values than the `config.json` beside the weights says, by the rules of `map`:
/// `model.init_args.block_size is 32 (n_positions: 64)`. Links may have set them. Empty if there is no such file.
std::vector<std::string> options_unlike_config(const std::filesystem::path& weights, const KeyMap& map,
                                               const ConfigNode& options);

}  // namespace fulgur::config
