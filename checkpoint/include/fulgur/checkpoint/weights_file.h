#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "fulgur/checkpoint/safetensors.h"

namespace fulgur {

/// Formats of weight files exchanged between Python and C++.
enum class WeightsFormat {
  safetensors,  ///< `.safetensors`
  pytorch,      ///< `.pt`, `.pth`, Lightning's `.ckpt`: written by torch.save
};

/// Weights and their origin.
struct FULGUR_API WeightsFile {
  WeightsFormat format = WeightsFormat::safetensors;
  NamedTensors tensors;
  std::map<std::string, std::string>
      aliases;  ///< tied parameter → name it is stored under; a `.pt` has both names in `tensors`
  std::vector<std::string> left_out;  ///< other contents of the file
};

/// Reads a file of either format, detected from its first bytes; or all shards of an index of Hugging Face's
/// (`….index.json`), which lie beside it; or what a folder of Hugging Face's has: `model.safetensors` or its index,
/// otherwise `pytorch_model.bin` or its index. Throws a CheckpointError, also if index and shards have different
/// tensors.
FULGUR_API WeightsFile read_weights_file(const std::filesystem::path& path);

/// Writes `weights` into a hidden sibling, syncs and renames it: afterwards the file is either complete or unchanged.
/// An existing file is replaced if `replace` is true, and is an error otherwise. Throws a CheckpointError.
FULGUR_API void write_weights_file(const std::filesystem::path& path, const WeightsFile& weights, bool replace = false);

}  // namespace fulgur
