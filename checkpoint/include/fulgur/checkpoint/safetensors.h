#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/core/state/tensor.h"

namespace fulgur {

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

/// Contents of a safetensors file: tensors on the CPU, in file order, and its string metadata.
struct FULGUR_API SafetensorsFile {
  NamedTensors tensors;
  std::map<std::string, std::string> metadata;
};

/// Name of a dtype in safetensors files, such as `F32`; null if the format cannot hold it.
FULGUR_API const char* safetensors_dtype(at::ScalarType dtype);

/// Writes tensors (any device, copied to the CPU) as a safetensors file and syncs it to disk. Throws a CheckpointError
/// that names path and reason; a previous file at `path` is then lost, so write to a temporary location.
FULGUR_API void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                                  const std::map<std::string, std::string>& metadata = {});

/// Reads a safetensors file. The header is validated strictly before memory is allocated; throws a CheckpointError that
/// says what is wrong.
FULGUR_API SafetensorsFile read_safetensors(const std::filesystem::path& path);

}  // namespace fulgur
