#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/checkpoint/safetensors.h"
#include "fulgur/core/state_tree.h"

namespace fulgur {

/// What a checkpoint holds, in memory. Tensors may alias live ones.
struct FULGUR_API CheckpointContent {
  NamedTensors module;
  std::map<std::string, std::string> aliases;  ///< tied parameter → name it is stored under
  StateTree optimizers;                        ///< list of optimizer states; null for weights only
  StateTree state;                             ///< everything else
};

/// Writes `content` as the folder `folder` (`….ckpt`): into a temporary sibling first, synced, then renamed. Afterwards
/// there is the whole checkpoint or nothing of it. Returns the path that was used: a name that is taken gets `-v1`, `-v2`, ….
/// Throws a CheckpointError; nothing stays behind then.
FULGUR_API std::filesystem::path write_checkpoint(std::filesystem::path folder, const CheckpointContent& content);

/// Which parts to read.
enum class CheckpointParts { all, weights_and_state };

/// Reads a checkpoint folder (or a link to one). Throws a CheckpointError that says what is wrong with which file.
FULGUR_API CheckpointContent read_checkpoint(const std::filesystem::path& folder, CheckpointParts parts = CheckpointParts::all);

/// Points the link `link` (`…/last.ckpt`) to `target`, atomically; relative where both lie in one folder.
FULGUR_API void link_checkpoint(const std::filesystem::path& link, const std::filesystem::path& target);

/// Removes a checkpoint folder, so that an interrupted removal never leaves what looks like a checkpoint.
FULGUR_API void remove_checkpoint(const std::filesystem::path& folder);

/// Removes temporary folders of writers that died. Call when no writer is at work in `folder`.
FULGUR_API void remove_leftovers(const std::filesystem::path& folder);

/// Global step and epoch of a checkpoint, from its state.
struct FULGUR_API CheckpointSummary {
  std::filesystem::path path;
  int64_t epoch = 0, global_step = 0;
};
FULGUR_API CheckpointSummary summarize_checkpoint(const std::filesystem::path& folder);

}  // namespace fulgur
