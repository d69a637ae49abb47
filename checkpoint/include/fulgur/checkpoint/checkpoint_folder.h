#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/checkpoint/origin.h"
#include "fulgur/checkpoint/safetensors.h"
#include "fulgur/core/state_tree.h"

namespace fulgur {

/// The newest format that this library reads, and the one that it writes.
inline constexpr int64_t kCheckpointFormat = 1;

/// What a checkpoint holds, in memory. Tensors may alias live ones.
struct FULGUR_API CheckpointContent {
  NamedTensors module;
  std::map<std::string, std::string> aliases;  ///< tied parameter → name it is stored under
  StateTree optimizers;                        ///< list of optimizer states; null for weights only
  StateTree state;                             ///< everything else
  CheckpointOrigin origin;
};

/// Writes `content` as the folder `folder` (`….ckpt`): into a temporary sibling first, synced, then renamed. Afterwards
/// there is the whole checkpoint or nothing of it. Returns the path that was used: a name that is taken gets `-v1`,
/// `-v2`, …. Throws a CheckpointError; nothing stays behind then.
FULGUR_API std::filesystem::path write_checkpoint(const std::filesystem::path& folder,
                                                  const CheckpointContent& content);

/// write_checkpoint, then reads back what was written and compares it with its manifest. What differs is removed, and
/// is a CheckpointError. For where an older checkpoint is given up for this one.
FULGUR_API std::filesystem::path write_verified_checkpoint(const std::filesystem::path& folder,
                                                           const CheckpointContent& content);

/// Which parts to read.
enum class CheckpointParts { all, weights_and_state };

/// How much of a folder is compared with its manifest: every file, or only those that are read (`weights_and_state`
/// where nothing is read).
enum class Verify { whole, needed };

/// Reads a checkpoint folder (or a link to one), after every byte was compared with the manifest. Throws a
/// CheckpointError that names each file, tensor or field that is wrong; nothing is returned of a checkpoint with any
/// damage.
FULGUR_API CheckpointContent read_checkpoint(const std::filesystem::path& folder,
                                             CheckpointParts parts = CheckpointParts::all,
                                             Verify verify = Verify::whole);

/// The state of a checkpoint alone: reads, and compares with the manifest, neither weights nor optimizers. Throws a
/// CheckpointError.
FULGUR_API StateTree read_checkpoint_state(const std::filesystem::path& folder);

/// Something in a checkpoint folder that is not as it was written.
struct FULGUR_API CheckpointProblem {
  std::string file;     ///< name inside the folder; empty for the folder itself
  std::string part;     ///< tensor or field, where one can be named
  std::string message;  ///< what is wrong
  /// `file: 'part' message`, for people.
  std::string text() const;
};

/// What verify_checkpoint found.
struct FULGUR_API VerifyReport {
  std::vector<CheckpointProblem> problems;
  bool ok() const { return problems.empty(); }
  /// All problems, one a line.
  std::string text() const;
};

/// Compares a checkpoint folder with its manifest, without keeping its tensors in memory. What is wrong is in the
/// report; nothing is thrown for it.
FULGUR_API VerifyReport verify_checkpoint(const std::filesystem::path& folder, Verify verify = Verify::whole);

/// Points the link `link` (`…/last.ckpt`) to `target`, atomically; relative where both lie in one folder.
FULGUR_API void link_checkpoint(const std::filesystem::path& link, const std::filesystem::path& target);

/// Removes a checkpoint folder, so that an interrupted removal never leaves what looks like a checkpoint.
FULGUR_API void remove_checkpoint(const std::filesystem::path& folder);

/// Removes temporary folders of writers that died. Call when no writer is at work in `folder`.
FULGUR_API void remove_leftovers(const std::filesystem::path& folder);

/// What a checkpoint is, from its manifest alone.
struct FULGUR_API CheckpointSummary {
  std::filesystem::path path;
  int64_t epoch = 0, global_step = 0;
  bool weights_only = false;
  CheckpointOrigin origin;
  std::optional<std::string>
      problem;  ///< why it cannot be used, as far as its manifest and the sizes of its files tell
};

/// Reads the manifest of a checkpoint; throws a CheckpointError where it is damaged or a file has another size.
FULGUR_API CheckpointSummary summarize_checkpoint(const std::filesystem::path& folder);

/// The checkpoints in `folder`, newest first: by global step, then by save counter, then by `-vN` of the name; never by
/// time stamps. Links and temporary folders are left out. Tensors are not read, so verify before use; one whose
/// manifest is damaged is listed with its `problem`, by the step that its name tells. An absent folder has none.
FULGUR_API std::vector<CheckpointSummary> list_checkpoints(const std::filesystem::path& folder);

}  // namespace fulgur
