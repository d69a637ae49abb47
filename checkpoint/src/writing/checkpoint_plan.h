#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "io/manifest.h"

namespace fulgur::detail {

/// Everything that is written of a checkpoint, except the values of tensors.
struct CheckpointPlan {
  Manifest manifest;
  std::map<std::string, std::string> metadata;                   ///< of the model's file
  NamedTensors module, optimizers, state;                        ///< the tensors that are whole
  std::vector<std::pair<std::string, std::string>> state_parts;  ///< name, text: one for each field
  /// The vectors in the files of this process's parts, by the file that has the tensors that are whole. The tensors are
  /// those of `manifest.divided`, whose pieces have no file yet.
  std::map<std::string, NamedTensors> parts;
  uint64_t bytes = 0;
};

/// Throws a CheckpointError for a state that cannot be written.
CheckpointPlan plan_checkpoint(const CheckpointContent& content);

}  // namespace fulgur::detail
