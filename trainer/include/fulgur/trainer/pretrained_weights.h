#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/core/contracts/key_map.h"
#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/options/options.h"

namespace fulgur {

/// Weights that a model begins with (`pretrained:` in the config): a file of Python's or another program's. A run that
/// begins with a checkpoint takes the checkpoint's weights instead and does not read the file.
struct FULGUR_API PretrainedWeights {
  /// safetensors, a `.pt` file, an index of safetensors shards, or a folder of Hugging Face's. Every rank reads it.
  std::optional<std::filesystem::path> path;
  Spec<KeyMap> key_map;  ///< none: the names are those of the module
  /// Removed from the beginning of the names in the file, before the key map is applied; names without it
  /// remain. At least one name must have it.
  std::string key_prefix;
  bool strict = true;               ///< all names and shapes must match, except those of `ignore`
  std::vector<std::string> ignore;  ///< patterns of names in the module that are not loaded
  /// A `config.json` beside the weights, which the key map describes (`KeyMap::config_rules`), sets the options of the
  /// model that the config does not set, and must agree with the others.
  bool use_config = true;
  /// Not an option: the options that `config.json` has set.
  std::vector<std::string> from_config = {};

  void fields(Fields& f);
  /// Throws a ConfigError if options are set without a path.
  void check() const;
};

}  // namespace fulgur
