#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "fulgur/checkpoint/checkpoint_folder.h"

namespace fulgur {

/// A checkpoint that several processes write together, each the parts of tensors that it has
/// (`CheckpointContent::parts`), in a folder that all of them see:
///
///     begin_parts    on rank 0, which sends the result to the others
///     write_parts    on each rank, at the same time
///     commit_parts   on rank 0, with the results of all
///
/// The folder is hidden until `commit_parts` renames it: a checkpoint is complete or absent.

/// Creates the folder in which the checkpoint `folder` (`….ckpt`) is written. Throws a CheckpointError.
FULGUR_API std::filesystem::path begin_parts(const std::filesystem::path& folder);

/// Writes and verifies the files of one rank: those of its parts, and on rank 0 also those of all that is not divided.
/// Returns a description of them, for `commit_parts`. Throws a CheckpointError.
FULGUR_API std::string write_parts(const std::filesystem::path& temporary, int64_t rank, int64_t ranks,
                                   const CheckpointContent& content);

/// Publishes the checkpoint, with the descriptions of all ranks by their order, after it has checked that the files are
/// there and have every element of each tensor once. Returns the path, as `write_checkpoint` does. If it throws a
/// CheckpointError, no files remain.
FULGUR_API std::filesystem::path commit_parts(const std::filesystem::path& temporary,
                                              const std::filesystem::path& folder,
                                              const std::vector<std::string>& descriptions);

/// Removes what was written since `begin_parts`. No rank may be writing.
FULGUR_API void drop_parts(const std::filesystem::path& temporary) noexcept;

}  // namespace fulgur
