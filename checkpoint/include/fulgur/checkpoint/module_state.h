#pragma once

#include <map>
#include <string>
#include <vector>

#include "fulgur/checkpoint/safetensors.h"
#include "fulgur/core/module.h"

namespace fulgur {

/// Parameters (each once, under its first name) and buffers of the module, as they are: the tensors are the live ones.
FULGUR_API NamedTensors module_state(const torch::nn::Module& module);

/// Further names of tied parameters → the name they are stored under.
FULGUR_API std::map<std::string, std::string> parameter_aliases(const torch::nn::Module& module);

/// How load_module_state brings names of a checkpoint and of a module together.
struct FULGUR_API LoadOptions {
  /// Every tensor of the one must be in the other, with shape and dtype. Off: what fits is loaded, the rest is listed.
  bool strict = true;
  /// Prefix of names in the checkpoint → what stands in its place in the module, such as `{"encoder.", "backbone."}`;
  /// the longest that fits a name counts. One that fits no name is an error.
  std::map<std::string, std::string> key_prefixes;
  /// Floating tensors of another floating format are converted, instead of being a difference.
  bool convert_formats = false;
};

/// What load_module_state did. Names are those of the module, after prefixes were replaced.
struct FULGUR_API LoadReport {
  std::vector<std::string> loaded;
  std::vector<std::string> missing;     ///< in the module, not in the checkpoint
  std::vector<std::string> unexpected;  ///< in the checkpoint, not in the module
  std::vector<std::string> mismatched;  ///< with another shape or dtype
  std::vector<std::string> converted;   ///< those of `loaded` that came in another format
  /// Everything but `loaded`, one a line with shapes and dtypes, of which the first 100 are there; empty if all was
  /// loaded.
  std::string differences;
};

/// Copies `tensors` into the module. Every name, shape and dtype is compared first: with `strict` any difference throws
/// a CheckpointError that lists them (the first 100), and the module is as it was. A tied parameter may stand under any
/// of its names, or under several with equal values.
FULGUR_API LoadReport load_module_state(torch::nn::Module& module, const NamedTensors& tensors,
                                        const LoadOptions& options = {});

}  // namespace fulgur
