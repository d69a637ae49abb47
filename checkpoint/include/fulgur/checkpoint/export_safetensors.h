#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "fulgur/checkpoint/inspect.h"
#include "fulgur/core/state/tensor.h"

namespace fulgur {

/// Tensors that are made one after the other.
struct FULGUR_API TensorSource {
  std::vector<TensorInfo> tensors;
  std::function<Tensor(size_t index)> read;    ///< called once for each, in their order
  std::map<std::string, std::string> aliases;  ///< tied parameter → name it is stored under
};

/// Writes a safetensors file; memory is needed for one tensor. Throws a CheckpointError, also if the file exists and
/// `replace` is false; afterwards the file is either complete or as it was.
FULGUR_API void write_safetensors_from(const std::filesystem::path& path, const TensorSource& source,
                                       bool replace = false);

/// Writes a folder that Hugging Face's loaders read: `model.safetensors` if the tensors have at most `max_shard_bytes`,
/// otherwise files of at most so many bytes each (more if one tensor has more), `model-00001-of-00003.safetensors`, and
/// their index `model.safetensors.index.json`. Throws a CheckpointError, also if the folder exists and `replace` is
/// false; afterwards the folder is either complete or as it was.
FULGUR_API void write_safetensors_shards(const std::filesystem::path& folder, const TensorSource& source,
                                         uint64_t max_shard_bytes, bool replace = false);

}  // namespace fulgur
