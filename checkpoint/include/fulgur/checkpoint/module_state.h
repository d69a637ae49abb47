#pragma once

#include <map>
#include <string>
#include <vector>

#include "fulgur/checkpoint/safetensors.h"
#include "fulgur/core/contracts/module.h"

namespace fulgur {

/// Parameters (each once, under its first name) and buffers of the module. They are the live tensors, not copies.
FULGUR_API NamedTensors module_state(const torch::nn::Module& module);

/// Maps the additional names of tied parameters to the name they are stored under.
FULGUR_API std::map<std::string, std::string> parameter_aliases(const torch::nn::Module& module);

/// How load_module_state matches names of a checkpoint and of a module.
struct FULGUR_API LoadOptions {
  /// Every tensor of the module must be in the checkpoint and every one of the checkpoint in the module, with the same
  /// shape and dtype. If off, tensors that fit are loaded and the others are listed.
  bool strict = true;
  /// Maps a prefix of names in the checkpoint to its replacement in the module, such as `{"encoder.", "backbone."}`;
  /// the longest matching prefix is used. A prefix that matches no name is an error.
  std::map<std::string, std::string> key_prefixes;
  /// Floating-point tensors of another floating-point dtype are converted instead of reported.
  bool convert_formats = false;
  /// Patterns of names in the module (`matches_pattern`): tensors with such a name are not loaded, and neither their
  /// absence nor their presence is a difference. A pattern that matches no name is an error.
  std::vector<std::string> ignore = {};
};

/// Result of load_module_state. Names are those in the module, after prefix replacement.
struct FULGUR_API LoadReport {
  std::vector<std::string> loaded;
  std::vector<std::string> missing;     ///< in the module, not in the checkpoint
  std::vector<std::string> unexpected;  ///< in the checkpoint, not in the module
  std::vector<std::string> mismatched;  ///< with another shape or dtype
  std::vector<std::string> converted;   ///< those of `loaded` that had another dtype
  std::vector<std::string> ignored;     ///< those of the module that `ignore` leaves as they are
  /// Everything except `loaded`, one per line with shapes and dtypes, at most the first 100; empty if everything was
  /// loaded.
  std::string differences;
};

/// Copies `tensors` into the module. All names, shapes and dtypes are compared first: with `strict` any difference
/// throws a CheckpointError that lists them (the first 100), and the module is unchanged. A tied parameter may appear
/// under any of its names, or under several with equal values. Tensors that stand for stored values are read one after
/// the other.
FULGUR_API LoadReport load_module_state(torch::nn::Module& module, const NamedTensors& tensors,
                                        const LoadOptions& options = {});

}  // namespace fulgur
