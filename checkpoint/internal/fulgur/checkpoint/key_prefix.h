#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "fulgur/checkpoint/safetensors.h"
#include "fulgur/core/contracts/key_map.h"
#include "fulgur/core/contracts/module.h"

namespace fulgur::detail {

/// The tensors, without `prefix` at the beginning of the names that have it. Throws a CheckpointError if none has it.
FULGUR_API NamedTensors without_prefix(const NamedTensors& tensors, std::string_view prefix);

/// A beginning of the names of a file, such as `module.`, without which more of them are names of `module`: the one
/// with which the most are, after `map` (nullptr: none). nullopt if no beginning helps.
FULGUR_API std::optional<std::string> helpful_prefix(const torch::nn::Module& module, const NamedTensors& tensors,
                                                     const KeyMap* map);

}  // namespace fulgur::detail
