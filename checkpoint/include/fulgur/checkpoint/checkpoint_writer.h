#pragma once

#include <filesystem>

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/core/export.h"

namespace fulgur {

/// Writes the checkpoints of a run (`trainer.checkpoint_writer`). A derived class does more than write a folder, such
/// as copying it to another disk. It exists on every rank, and writes on rank 0: on the writer's thread, or on the
/// run's thread if `async_checkpoint` is false; never two checkpoints at a time.
class FULGUR_API CheckpointWriter {
 public:
  static constexpr const char* kRegistryKind = "checkpoint_writer";

  virtual ~CheckpointWriter();
  /// Writes the checkpoint, as `write_verified_checkpoint` does, which the default calls. `folder` is `….ckpt`; the
  /// result is the path that was used. Afterwards a checkpoint that `read_checkpoint` reads must be there: the run
  /// links, resumes from, and removes it. An exception means that the checkpoint was not saved
  /// (`trainer.on_save_error`), so no part of it may remain. `content` is a copy, and stays as it is during the call.
  virtual std::filesystem::path write(const std::filesystem::path& folder, const CheckpointContent& content);
};

}  // namespace fulgur
