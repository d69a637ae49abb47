#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "fulgur/checkpoint/safetensors.h"

namespace fulgur {

/// Files of weights that Python and C++ exchange.
enum class WeightsFormat {
  safetensors,  ///< `.safetensors`
  pytorch,      ///< `.pt`, `.pth`, Lightning's `.ckpt`: what torch.save writes
};

/// Weights and where they come from.
struct FULGUR_API WeightsFile {
  WeightsFormat format = WeightsFormat::safetensors;
  NamedTensors tensors;
  std::map<std::string, std::string>
      aliases;  ///< tied parameter → name it is stored under; a `.pt` has both names in `tensors`
  std::vector<std::string> left_out;  ///< what else stood in the file
};

/// Reads a file of either format, which its first bytes tell. Throws a CheckpointError.
FULGUR_API WeightsFile read_weights_file(const std::filesystem::path& path);

/// Writes `weights` into a hidden sibling, syncs and renames it: afterwards there is the whole file, or what was there
/// before. A file that exists is replaced with `replace`, else an error. Throws a CheckpointError.
FULGUR_API void write_weights_file(const std::filesystem::path& path, const WeightsFile& weights, bool replace = false);

}  // namespace fulgur
