#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "fulgur/checkpoint/safetensors.h"

namespace fulgur {

/// A Python state dict, as written by torch.save.
struct FULGUR_API PytorchFile {
  NamedTensors tensors;  ///< on the CPU, in file order; tensors that share memory in the file share it here
  std::vector<std::string> left_out;  ///< the first 100 other contents of the file, such as `'epoch' (a number)`
};

/// Reads a file of `torch.save(state_dict)`, or the `state_dict` of a Lightning checkpoint. Its pickle is read
/// strictly: nothing is called, and any class or function that a state dict does not need is refused. Sizes are checked
/// against the file before memory is allocated. Throws a CheckpointError that says what is wrong.
FULGUR_API PytorchFile read_pytorch_file(const std::filesystem::path& path);

/// Writes tensors (any device, copied to the CPU) so that Python's `torch.load(weights_only=True)` returns an
/// OrderedDict of them, and syncs the file to disk. `aliases` maps an additional name to the name of the tensor whose
/// memory it shares. Throws a CheckpointError that names path and reason, also if the file exists.
FULGUR_API void write_pytorch_file(const std::filesystem::path& path, const NamedTensors& tensors,
                                   const std::map<std::string, std::string>& aliases = {});

}  // namespace fulgur
