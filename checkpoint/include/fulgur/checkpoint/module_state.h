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

/// Copies `tensors` into the module. Every name, shape and dtype is compared first: any difference throws a
/// CheckpointError that lists them all, and the module is as it was.
FULGUR_API void load_module_state(torch::nn::Module& module, const NamedTensors& tensors);

}  // namespace fulgur
