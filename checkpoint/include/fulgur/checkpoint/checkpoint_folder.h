#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/checkpoint/origin.h"
#include "fulgur/checkpoint/safetensors.h"
#include "fulgur/core/options/enum_names.h"
#include "fulgur/core/state/state_tree.h"
#include "fulgur/core/state/tensor_part.h"

namespace fulgur {

/// The newest format that this library reads. It writes format 1, format 2 if ranks have written parts of tensors, and
/// format 3 if some of these parts are ranges along a dimension, or of tensors of the state.
inline constexpr int64_t kCheckpointFormat = 3;

/// The contents of a checkpoint, in memory. Tensors may alias live ones. A tensor on the device `meta` stands for one
/// that is divided among processes.
struct FULGUR_API CheckpointContent {
  NamedTensors module;
  std::map<std::string, std::string> aliases;  ///< tied parameter → name it is stored under
  StateTree optimizers;                        ///< list of optimizer states; null for weights only
  StateTree state;                             ///< everything else
  CheckpointOrigin origin;
  std::vector<TensorPart> parts = {};  ///< those of this process, of divided tensors
};

/// Writes `content` into a temporary folder beside `folder` (`….ckpt`), syncs it, and renames it to `folder`.
/// Afterwards either the whole checkpoint exists or none of it. Returns the path used: if the name is taken, `-v1`,
/// `-v2`, … is appended. If it throws a CheckpointError, no files remain.
FULGUR_API std::filesystem::path write_checkpoint(const std::filesystem::path& folder,
                                                  const CheckpointContent& content);

/// Calls write_checkpoint, reads the result back and compares it with its manifest. If it differs, it is removed and a
/// CheckpointError is thrown. Use it before an older checkpoint is discarded in favour of the new one.
FULGUR_API std::filesystem::path write_verified_checkpoint(const std::filesystem::path& folder,
                                                           const CheckpointContent& content);

/// Which parts to read.
enum class CheckpointParts { all, weights_and_state };

/// How much of a folder is compared with its manifest: every file, or only those that are read (`weights_and_state` if
/// nothing is read).
enum class Verify { whole, needed };
constexpr auto enum_names(Verify) {
  return std::to_array<EnumName<Verify>>({{Verify::whole, "whole"}, {Verify::needed, "needed"}});
}

/// When the tensors of weights and optimizers, and divided ones of the state, are read: at once, or each when something
/// needs it; until then a tensor on `meta` stands for it (`stored_values.h`), and the folder must stay as it is.
enum class ReadTensors { at_once, when_needed };

/// Reads a checkpoint folder (or a link to one), after every byte has been compared with the manifest. Throws a
/// CheckpointError that names each wrong file, tensor or field; returns nothing from a checkpoint with any damage.
FULGUR_API CheckpointContent read_checkpoint(const std::filesystem::path& folder,
                                             CheckpointParts parts = CheckpointParts::all,
                                             Verify verify = Verify::whole, ReadTensors when = ReadTensors::at_once);

/// Reads only the state of a checkpoint; weights and optimizers are neither read nor verified. A tensor on `meta`
/// stands for each divided one, as with `ReadTensors::when_needed`. Throws a CheckpointError.
FULGUR_API StateTree read_checkpoint_state(const std::filesystem::path& folder);

/// A difference between a checkpoint folder and what was written.
struct FULGUR_API CheckpointProblem {
  std::string file;     ///< name inside the folder; empty for the folder itself
  std::string part;     ///< tensor or field, if known
  std::string message;  ///< what is wrong
  /// The difference as `file: 'part' message`, for display.
  std::string describe() const;
};

/// Result of verify_checkpoint.
struct FULGUR_API VerifyReport {
  std::vector<CheckpointProblem> problems;
  bool ok() const { return problems.empty(); }
  /// All problems, one per line.
  std::string describe() const;
};

/// Compares a checkpoint folder with its manifest, without keeping its tensors in memory. Damage is listed in the
/// report and does not throw.
FULGUR_API VerifyReport verify_checkpoint(const std::filesystem::path& folder, Verify verify = Verify::whole);

/// Points the link `link` (`…/last.ckpt`) to `target`, atomically. The link is relative if both are in the same folder.
FULGUR_API void link_checkpoint(const std::filesystem::path& link, const std::filesystem::path& target);
/// The target of the symbolic link `link`, followed once, relative to its folder; nullopt if it is not a link.
FULGUR_API std::optional<std::filesystem::path> link_target(const std::filesystem::path& link);

/// Removes a checkpoint folder so that an interrupted removal never leaves a folder that looks like a checkpoint.
FULGUR_API void remove_checkpoint(const std::filesystem::path& folder);

/// Removes temporary folders of writers that died. Call only when no writer is active in `folder`.
FULGUR_API void remove_leftovers(const std::filesystem::path& folder);

/// Summary of a checkpoint, from its manifest only.
struct FULGUR_API CheckpointSummary {
  std::filesystem::path path;
  int64_t epoch = 0;  ///< the current epoch, or else the last completed one; counted from 0
  int64_t global_step = 0;
  bool weights_only = false;
  CheckpointOrigin origin;
  std::optional<std::string> problem;  ///< why it cannot be used, as far as its manifest and file sizes show
};

/// Reads the manifest of a checkpoint; throws a CheckpointError if it is damaged or a file has a different size.
FULGUR_API CheckpointSummary summarize_checkpoint(const std::filesystem::path& folder);

/// The checkpoints in `folder`, newest first: by global step, then by save counter, then by `-vN` of the name; never by
/// timestamps. Links and temporary folders are omitted. Tensors are not read, so verify before use; a checkpoint with a
/// damaged manifest is listed with its `problem`, ordered by the step in its name. Empty if the folder does not exist.
FULGUR_API std::vector<CheckpointSummary> list_checkpoints(const std::filesystem::path& folder);

/// The name under which a checkpoint was written: its file name without `.ckpt`, and without the `-vN` that it got if
/// the name was taken.
FULGUR_API std::string checkpoint_name(const std::filesystem::path& checkpoint);

/// The checkpoints in `folder` that were written under `name`, also those that got `-vN` since it was taken; newest
/// first, by the time at which their state was written. Links are omitted.
FULGUR_API std::vector<std::filesystem::path> checkpoints_named(const std::filesystem::path& folder,
                                                                std::string_view name);

}  // namespace fulgur
