#pragma once

#include <string_view>

#include "fulgur/checkpoint/safetensors.h"
#include "fulgur/core/contracts/key_map.h"

namespace fulgur {

/// The tensors under the names that they have in the module, by the map's rules: renamed, transposed (as views), left
/// out, or joined. `map_name` is for messages. Throws a CheckpointError if a tensor that is transposed is no matrix, if
/// a part of a joined tensor is absent or given twice, or if the shapes of the parts do not fit.
FULGUR_API NamedTensors map_keys(const NamedTensors& tensors, const KeyMap& map, std::string_view map_name);

/// Whether a rule of the map fits at least one name, or the map has no rules.
FULGUR_API bool knows_a_name(const NamedTensors& tensors, const KeyMap& map);

}  // namespace fulgur
