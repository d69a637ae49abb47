#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "fulgur/checkpoint/safetensors.h"

namespace fulgur {

/// A state dict of Python's, as torch.save writes it.
struct FULGUR_API PytorchFile {
  NamedTensors tensors;               ///< on the CPU, in the file's order; those that share memory there share it here
  std::vector<std::string> left_out;  ///< what else stood in the file, the first 100: `'epoch' (a number)`
};

/// Reads what `torch.save(state_dict)` wrote, or the `state_dict` of a checkpoint of Lightning's. The pickle in it is
/// read strictly: nothing is called, and any name of code that a state dict does not need is refused. Sizes are held
/// against the file before memory is taken. Throws a CheckpointError that says what is wrong.
FULGUR_API PytorchFile read_pytorch_file(const std::filesystem::path& path);

/// Writes tensors (any device, copied to the CPU) so that Python's `torch.load(weights_only=True)` gives an OrderedDict
/// of them, and syncs the file to disk. `aliases`: further name → name of the tensor that it shares memory with. Throws
/// a CheckpointError that names path and reason, also where the file exists.
FULGUR_API void write_pytorch_file(const std::filesystem::path& path, const NamedTensors& tensors,
                                   const std::map<std::string, std::string>& aliases = {});

}  // namespace fulgur
