#pragma once

#include "command_line.h"
#include "fulgur/checkpoint/checkpoint_folder.h"

namespace fulgur::cli {

/// `export CKPT --format torchscript`: the model of the checkpoint as a TorchScript file, whose outputs were compared
/// with those of the model. Throws a ConfigError for a model that cannot be one.
void export_torchscript(const CommandLine& command, const CheckpointContent& content,
                        const std::filesystem::path& output);

}  // namespace fulgur::cli
