#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "fulgur/checkpoint/checkpoint_folder.h"

namespace fulgur {

/// A tensor of a file, without its values.
struct FULGUR_API TensorInfo {
  std::string name;
  std::string dtype;  ///< name in safetensors files, such as `F32`
  std::vector<int64_t> shape;
  uint64_t bytes = 0;
};

/// The contents of a checkpoint, as far as they can be read.
struct FULGUR_API CheckpointInspection {
  struct File {
    std::string name;
    uint64_t bytes = 0;               ///< size according to the manifest
    std::vector<TensorInfo> tensors;  ///< if it is a safetensors file
  };
  CheckpointSummary summary;
  std::vector<File> files;
  std::vector<TensorInfo> weights;             ///< of the model, also those whose parts are in several files
  std::map<std::string, std::string> aliases;  ///< tied parameter → name it is stored under
  StateTree state;                             ///< empty if `report` has problems
  VerifyReport report;                         ///< result of comparing every byte of the folder
};

/// Reads the manifest, all headers and the state, and verifies every byte; keeps no weights in memory. Throws a
/// CheckpointError if there is no readable manifest; any other damage is in `report`.
FULGUR_API CheckpointInspection inspect_checkpoint(const std::filesystem::path& folder);

}  // namespace fulgur
