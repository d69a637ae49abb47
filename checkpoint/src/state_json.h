#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "fulgur/checkpoint/safetensors.h"
#include "fulgur/core/state_tree.h"

namespace fulgur::detail {

/// The tree as JSON. Tensors go to `tensors` under their path and leave `{"__tensor__": path}`; non-finite numbers are
/// `{"__float__": "nan"}`. `path` is the prefix of tensor names.
nlohmann::ordered_json state_to_json(const StateTree& tree, const std::string& path, NamedTensors& tensors);

/// The reverse; throws a CheckpointError for a tensor that is not among `tensors`.
StateTree state_from_json(const nlohmann::ordered_json& json, const std::map<std::string, Tensor>& tensors);

}  // namespace fulgur::detail
